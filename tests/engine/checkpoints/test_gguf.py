"""gguf files: what is read equals the Hugging Face tensors they were written from."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.checkpoints.gguf_file import open_gguf

from .models import HIDDEN, SIZES, gguf_writer, weights, write_gguf


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_unquantised_file_gives_the_hugging_face_tensors(
    tmp_path: Path, architecture: str, kind: Kind
) -> None:
    made = weights(architecture, tied=False)
    if kind == Kind.F16:
        made = {n: t.half().float() if t.dim() > 1 else t for n, t in made.items()}
    path = write_gguf(tmp_path / "model.gguf", architecture, made, kind)
    opened = open_checkpoint(ModelSource("any", checkpoint=str(path)))
    assert (opened.reader, opened.path, opened.name) == ("gguf", path, "model")
    assert opened.tensors == {name: tuple(tensor.shape) for name, tensor in made.items()}
    for name, tensor in made.items():
        assert torch.equal(opened.read(name), tensor.bfloat16()), name


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_quantised_matrix_is_dequantised_and_rounded_once(tmp_path: Path, kind: Kind) -> None:
    made = weights("qwen3", tied=False)
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "qwen3", made, kind))
    for name in ("lm_head.weight", "model.layers.1.mlp.down_proj.weight"):
        wide = gguf.dequantize(gguf.quantize(made[name].numpy(), kind), kind)
        assert torch.equal(opened.read(name), torch.from_numpy(wide).bfloat16())


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K, Kind.IQ4_XS, Kind.TQ2_0])
def test_types_that_only_the_package_knows_are_read_through_it(tmp_path: Path, kind: Kind) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    # Small bytes: as the scale's halves they are tiny numbers, never NaN.
    draws = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 60, (8, block_bytes), dtype=torch.uint8, generator=draws).numpy()
    writer = gguf_writer(tmp_path / "model.gguf", "qwen2")
    writer.add_tensor("output.weight", raw, raw_dtype=kind)
    made = weights("qwen2", tied=True)
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "qwen2", made, writer=writer))
    expected = torch.from_numpy(gguf.dequantize(raw, kind)).bfloat16()
    assert opened.tensors["lm_head.weight"] == (8, block)
    assert expected.abs().max() > 0
    assert torch.equal(opened.read("lm_head.weight"), expected)


def test_rows_of_llama_q_and_k_come_back_in_hugging_face_order(tmp_path: Path) -> None:
    made = weights("llama", tied=True)
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "llama", made, Kind.Q8_0))
    for part in ("q_proj", "k_proj", "v_proj"):
        name = f"model.layers.0.self_attn.{part}.weight"
        wide = gguf.dequantize(gguf.quantize(made[name].numpy(), Kind.Q8_0), Kind.Q8_0)
        assert torch.equal(opened.read(name), torch.from_numpy(wide).bfloat16()), part


def test_biases_of_llama_q_and_k_are_reordered_with_their_rows(tmp_path: Path) -> None:
    made = weights("qwen2", tied=True)  # llama with biases has qwen2's tensors
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "llama", made))
    name = "model.layers.1.self_attn.k_proj.bias"
    assert torch.equal(opened.read(name), made[name].bfloat16())
    assert opened.config["attention_bias"] is True


def test_transformers_reads_the_same_tensors(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `oracle` isn't installed")
    made = weights("llama", tied=False)
    writer = gguf_writer(tmp_path / "model.gguf", "llama")
    writer.add_vocab_size(int(str(SIZES["vocab_size"])))
    path = write_gguf(tmp_path / "model.gguf", "llama", made, Kind.Q8_0, writer)
    transformers.utils.logging.disable_progress_bar()
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).state_dict()
    opened = open_gguf(path)
    assert set(opened.tensors) == set(other)
    for name in opened.tensors:
        assert torch.equal(opened.read(name), other[name].bfloat16()), name


def test_chunks_change_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = weights("llama", tied=True)
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "llama", made, Kind.Q4_1))
    whole = {name: opened.read(name) for name in opened.tensors}
    monkeypatch.setattr("metpipe.engine.checkpoints.gguf_file.CHUNK_ELEMENTS", 3 * HIDDEN)
    assert all(torch.equal(opened.read(name), tensor) for name, tensor in whole.items())


def test_reading_holds_chunks_not_a_second_copy(tmp_path: Path) -> None:
    made = weights("qwen2", tied=True)
    writer = gguf_writer(tmp_path / "model.gguf", "qwen2")
    big = torch.ones(8192, 512)
    writer.add_tensor("output.weight", gguf.quantize(big.numpy(), Kind.Q8_0), raw_dtype=Kind.Q8_0)
    opened = open_gguf(write_gguf(tmp_path / "model.gguf", "qwen2", made, writer=writer))
    tracemalloc.start()
    try:
        read = opened.read("lm_head.weight")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read.numel() * 4 == 16 << 20  # in f32; numpy's arrays are traced, torch's are not
    assert peak < 2 << 20


def test_digest_changes_with_a_byte(tmp_path: Path) -> None:
    made = weights("qwen3", tied=True)
    path = write_gguf(tmp_path / "model.gguf", "qwen3", made)
    first = open_gguf(path).digest()
    made["model.norm.weight"][3] += 1
    second = open_gguf(write_gguf(tmp_path / "other.gguf", "qwen3", made)).digest()
    assert first != second
    assert open_gguf(path).digest() == first
