"""Small models written to disk in the formats that are read: the writers are the tests' own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

F32 = npt.NDArray[np.float32]

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 2, 4, 2, 16, 40

SIZES: dict[str, object] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 50000.0,
}

# Hugging Face module -> gguf module, as llama.cpp's converter names them.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def weights(model_type: str, *, tied: bool) -> dict[str, torch.Tensor]:
    """Hugging Face name -> f32 tensor of a small model of this type."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": s for name, s in _layer(model_type).items()}
    draws = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}


def _layer(model_type: str) -> dict[str, tuple[int, ...]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (q, HIDDEN),
        "self_attn.k_proj.weight": (kv, HIDDEN),
        "self_attn.v_proj.weight": (kv, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, q),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INTER, HIDDEN),
        "mlp.up_proj.weight": (INTER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTER),
    }
    if model_type == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
    if model_type == "qwen2":
        shapes |= {f"self_attn.{n}_proj.bias": (w,) for n, w in (("q", q), ("k", kv), ("v", kv))}
    return shapes


def write_folder(
    folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, object] | None = None
) -> Path:
    """A Hugging Face folder with one safetensors file."""
    write_config(folder, config)
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def write_config(folder: Path, config: Mapping[str, object] | None = None) -> Path:
    """A folder with config.json alone."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"model_type": "llama", **SIZES} if config is None else config
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def write_sharded(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """A Hugging Face folder whose tensors are dealt to two shards in turn."""
    write_config(folder)
    shards: list[dict[str, torch.Tensor]] = [{}, {}]
    for index, (name, tensor) in enumerate(sorted(tensors.items())):
        shards[index % 2][name] = tensor
    files = [f"model-{index + 1:05}-of-00002.safetensors" for index in range(2)]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, folder / file)
    placed = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_writer(path: Path, architecture: str) -> gguf.GGUFWriter:
    """A writer that has the metadata of the small model."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-05)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    return writer


def write_gguf(
    path: Path,
    architecture: str,
    tensors: Mapping[str, torch.Tensor],
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    writer: gguf.GGUFWriter | None = None,
) -> Path:
    """A gguf as llama.cpp's converter writes it: vectors in f32, q and k of llama permuted."""
    writer = gguf_writer(path, architecture) if writer is None else writer
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if architecture == "llama":
            values = _permuted(name, values)
        kind = matrix_type if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        raw = gguf.quantize(values, kind)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """The converter's name of a Hugging Face tensor."""
    module, kind = name.rsplit(".", 1)
    root = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    if module in root:
        return f"{root[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.{kind}"


def _permuted(name: str, values: F32) -> F32:
    """Within each head, rows j and j + d/2 become neighbours 2j and 2j + 1."""
    for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
        if part in name:
            split = values.reshape(heads, 2, HEAD_DIM // 2, -1)
            return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(values.shape)
    return values
