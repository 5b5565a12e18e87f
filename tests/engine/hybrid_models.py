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
from tests.engine.hybrid_configs import CONFIGS, FULL

__all__ = ["CONFIGS", "DraftHead", "save_hybrid", "set_key", "unstack"]


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
