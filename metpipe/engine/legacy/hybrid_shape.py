"""What the hand-written forward of the hybrids needs of config.json.

Two families share it: dense (`qwen3_5`) and with experts (`qwen3_5_moe`), each as a text model on
its own (`..._text`: keys in the root, modules below `model`) or inside a model that sees (keys in
`text_config`, modules below `model.language_model`). Defaults are those of Hugging Face's classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.engine.legacy.config_keys import config_float, config_int
from metpipe.engine.rope_tables import RopeSpec, rope_spec

__all__ = ["ExpertShape", "HybridShape"]

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Sizes of a feed-forward with experts."""

    experts: int
    top_k: int
    inter: int
    """of one expert"""
    shared_inter: int


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Sizes of mixers and head."""

    root: str
    """the module that holds the text model"""
    attends: tuple[bool, ...]
    """per layer: gated attention, else a gated delta net"""
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    eps: float
    experts: ExpertShape | None
    """None: every feed-forward is dense"""
    tied: bool
    has_draft: bool

    @property
    def conv_dim(self) -> int:
        """Channels of a delta net's convolution: query, key, value."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @classmethod
    def from_config(cls, config: Config) -> HybridShape:
        """Read a Hugging Face config of either family, nested or plain."""
        text = _text(config)
        head_dim = config_int(text, "head_dim", 256)
        is_moe = str(config["model_type"]).startswith("qwen3_5_moe")
        return cls(
            root="model.language_model" if "text_config" in config else "model",
            attends=_attends(text),
            hidden=config_int(text, "hidden_size"),
            q_heads=config_int(text, "num_attention_heads"),
            kv_heads=config_int(text, "num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=int(head_dim * config_float(_rope(text), "partial_rotary_factor", 0.25)),
            k_heads=config_int(text, "linear_num_key_heads", 16),
            k_dim=config_int(text, "linear_key_head_dim", 128),
            v_heads=config_int(text, "linear_num_value_heads", 32),
            v_dim=config_int(text, "linear_value_head_dim", 128),
            eps=config_float(text, "rms_norm_eps", 1e-6),
            experts=_experts(text) if is_moe else None,
            # Of a nested model the outer key counts, and the inner one does not.
            tied=bool(config.get("tie_word_embeddings", False)),
            has_draft=config_int(text, "mtp_num_hidden_layers", 0) > 0,
        )

    def rope(self, config: Config) -> RopeSpec:
        """The rotary table: plain positions over the first channels of a head.

        The pairs are shared out among three position axes (time, height, width); text has the same
        position on each, so that the sharing does not matter.
        """
        asked = _rope(_text(config))
        theta = config_float(asked, "rope_theta", 10000.0)
        return rope_spec({"rope_type": "default", "rope_theta": theta}, self.rotary_dim)


def _text(config: Config) -> Config:
    """The keys of the text model."""
    inner = config.get("text_config", config)
    assert isinstance(inner, Mapping)
    return inner


def _rope(text: Config) -> Config:
    """The rope parameters, in their newer or their older place."""
    older = {key: text[key] for key in ("rope_theta", "partial_rotary_factor") if key in text}
    asked = text.get("rope_parameters") or text.get("rope_scaling") or {}
    assert isinstance(asked, Mapping)
    return {**older, **{key: value for key, value in asked.items() if value is not None}}


def _attends(text: Config) -> tuple[bool, ...]:
    """As listed, or the last of every `full_attention_interval` layers."""
    count, period = (
        config_int(text, "num_hidden_layers"),
        config_int(text, "full_attention_interval", 4),
    )
    kinds = text.get("layer_types")
    if kinds is None:
        return tuple((layer + 1) % period == 0 for layer in range(count))
    assert isinstance(kinds, list)
    return tuple(kind == "full_attention" for kind in kinds)


def _experts(text: Config) -> ExpertShape:
    return ExpertShape(
        experts=config_int(text, "num_experts", 256),
        top_k=config_int(text, "num_experts_per_tok", 8),
        inter=config_int(text, "moe_intermediate_size", 512),
        shared_inter=config_int(text, "shared_expert_intermediate_size", 512),
    )
