"""Small hybrids saved by transformers itself: both families, nested and plain, of odd sizes.

transformers has no draft head; its modules do, put together here as the checkpoints name them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from metpipe.oracle import quiet

__all__ = ["CONFIGS", "DraftHead", "save_hybrid", "set_key", "unstack"]

LINEAR, FULL = "linear_attention", "full_attention"


def _text(model_type: str, **sizes: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": 211,
        "hidden_size": 60,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 26,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 22,
        "linear_conv_kernel_dim": 4,
        "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL],
        "num_hidden_layers": 5,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 2, 1],
            "mrope_interleaved": True,
        },
        **sizes,
    }


VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
    "spatial_merge_size": 2, "num_position_embeddings": 16,
}  # fmt: skip


def _nested(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": text,
        "vision_config": {**VISION, "out_hidden_size": text["hidden_size"]},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


EXPERTS = {
    "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 30,
}  # fmt: skip
DENSE = _text("qwen3_5_text", intermediate_size=87)
NARROW = _text(
    "qwen3_5_text", intermediate_size=31, hidden_size=52, num_attention_heads=3,
    num_key_value_heads=1, head_dim=18, linear_num_key_heads=3, linear_key_head_dim=19,
    linear_num_value_heads=3, linear_value_head_dim=17, layer_types=[FULL, LINEAR, LINEAR, LINEAR],
    num_hidden_layers=4, tie_word_embeddings=True,
    rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25
    },
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "dense, tied, rotary_dim 4 of 18": NARROW,
    "dense, nested": _nested(DENSE),
    "experts": _text("qwen3_5_moe_text", **EXPERTS),
    "experts, nested, tied": _nested(
        _text("qwen3_5_moe_text", **EXPERTS, hidden_size=44, tie_word_embeddings=True)
    ),
}
"""What is special of it -> config.json."""


class DraftHead(torch.nn.Module):
    """The draft head from transformers' own layer, its parameters named as in a checkpoint."""

    def __init__(self, config: Any) -> None:
        """`config`: transformers' own, of the text model."""
        super().__init__()
        modeling = _modeling(config)
        base = "Qwen3_5Moe" if "moe" in config.model_type else "Qwen3_5"
        norm = getattr(modeling, f"{base}RMSNorm")
        self.pre_fc_norm_embedding = norm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(config.hidden_size, config.rms_norm_eps)
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer = config.layer_types.index(FULL)
        decoder = getattr(modeling, f"{base}DecoderLayer")
        self.layers = torch.nn.ModuleList([decoder(config, layer)])
        self.norm = norm(config.hidden_size, config.rms_norm_eps)
        self.rotary = getattr(modeling, f"{base}TextRotaryEmbedding")(config)

    def forward(self, embedded_TD: torch.Tensor, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The normed stream [T, D] of a sequence that starts at position 0."""
        rows = embedded_TD.shape[0]
        joined = torch.cat(
            (self.pre_fc_norm_embedding(embedded_TD), self.pre_fc_norm_hidden(hidden_TD)), dim=-1
        )
        x = self.fc(joined)[None]
        positions = torch.arange(rows)[None]
        least = torch.finfo(x.dtype).min
        mask = torch.full((rows, rows), least, dtype=x.dtype).triu(1)[None, None]
        x = self.layers[0](
            x, position_embeddings=self.rotary(x, positions), attention_mask=mask,
            position_ids=positions,
        )  # fmt: skip
        return self.norm(x)[0]


def _modeling(config: Any) -> Any:
    if "moe" in config.model_type:
        from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling
    else:
        from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling
    return modeling


def save_hybrid(folder: Path, name: str, seed: int) -> Path:
    """A Hugging Face folder of a config of CONFIGS with random bf16 weights and a draft head."""
    with quiet():
        model = _model_of(CONFIGS[name])
        draws = torch.Generator().manual_seed(seed)
        _enliven(model, draws)
        head = DraftHead(model.config.get_text_config())
        _enliven(head, draws)
        model.to(torch.bfloat16).save_pretrained(folder)
    added = {f"mtp.{key}": value.to(torch.bfloat16) for key, value in head.state_dict().items()}
    file = folder / "model.safetensors"
    save_file({**load_file(file), **added}, file, metadata={"format": "pt"})
    return folder


def _model_of(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    made = AutoConfig.for_model(**config)
    made._attn_implementation = "eager"
    auto = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
    return auto.from_config(made)


def _enliven(module: torch.nn.Module, draws: torch.Generator) -> None:
    """Logits of about 2, attention at few tokens, states that remember, choices that are clear."""
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=draws)
        if parameter.dim() > 1:
            values *= _gain(name) * parameter[0].numel() ** -0.5
            if "experts." in name and parameter.dim() == 3:
                values *= parameter.shape[1] ** 0.5
        elif name.endswith("linear_attn.norm.weight"):
            values = 1.0 + 0.2 * values
        elif name.endswith("A_log"):
            values -= 1.5
        else:
            values *= 0.2
        parameter.data.copy_(values)


def _gain(name: str) -> float:
    gains = {"q_proj": 1.5, "mlp.gate.weight": 6.0, "embed": 2.0, "lm_head": 2.0}
    return next((gain for part, gain in gains.items() if part in name), 1.0)


def unstack(folder: Path) -> None:
    """Store each expert's matrices by themselves, as older checkpoints do."""
    file = folder / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(file).items():
        module, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or not module.endswith("experts"):
            tensors[name] = value
            continue
        for number, matrix in enumerate(value):
            parts = matrix.chunk(2) if last == "gate_up_proj" else (matrix,)
            names = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
            for part, projection in zip(parts, names, strict=True):
                tensors[f"{module}.{number}.{projection}.weight"] = part.clone()
    save_file(tensors, file, metadata={"format": "pt"})


def set_key(folder: Path, key: str, value: object) -> None:
    """Change a key of the text model in the folder's config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.get("text_config", config)[key] = value
    file.write_text(json.dumps(config))
