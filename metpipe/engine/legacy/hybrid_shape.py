"""What the hand-written forward of the hybrids needs of config.json.

Two families share it: dense (`qwen3_5`) and with experts (`qwen3_5_moe`), each as a text model on
its own (`..._text`: keys in the root, modules below `model`) or inside a model that sees (keys in
`text_config`, modules below `model.language_model`). Absent keys take `class_defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.engine.legacy.class_defaults import EXPERTS, HYBRID, OUTER, ROPE
from metpipe.engine.legacy.config_keys import ConfigKeys
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
        text = ConfigKeys(_text(config), HYBRID)
        head_dim = text.integer("head_dim")
        rotary_share = ConfigKeys(_rope(text.config), ROPE).number("partial_rotary_factor")
        is_moe = str(config["model_type"]).startswith("qwen3_5_moe")
        return cls(
            root="model.language_model" if "text_config" in config else "model",
            attends=_attends(text),
            hidden=text.integer("hidden_size"),
            q_heads=text.integer("num_attention_heads"),
            kv_heads=text.integer("num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=int(head_dim * rotary_share),
            k_heads=text.integer("linear_num_key_heads"),
            k_dim=text.integer("linear_key_head_dim"),
            v_heads=text.integer("linear_num_value_heads"),
            v_dim=text.integer("linear_value_head_dim"),
            eps=text.number("rms_norm_eps"),
            experts=_experts(text.config) if is_moe else None,
            # Of a nested model the outer key counts, and the inner one does not.
            tied=ConfigKeys(config, OUTER).is_true("tie_word_embeddings"),
            has_draft=text.integer("mtp_num_hidden_layers") > 0,
        )

    def rope(self, config: Config) -> RopeSpec:
        """The rotary table: plain positions over the first channels of a head.

        The pairs are shared out among three position axes (time, height, width); text has the same
        position on each, so that the sharing does not matter.
        """
        theta = ConfigKeys(_rope(_text(config)), ROPE).number("rope_theta")
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


def _attends(text: ConfigKeys) -> tuple[bool, ...]:
    """As listed, or the last of every `full_attention_interval` layers."""
    count, period = text.integer("num_hidden_layers"), text.integer("full_attention_interval")
    kinds = text.config.get("layer_types")
    if kinds is None:
        return tuple((layer + 1) % period == 0 for layer in range(count))
    assert isinstance(kinds, list)
    return tuple(kind == "full_attention" for kind in kinds)


def _experts(text: Config) -> ExpertShape:
    keys = ConfigKeys(text, EXPERTS)
    return ExpertShape(
        experts=keys.integer("num_experts"),
        top_k=keys.integer("num_experts_per_tok"),
        inter=keys.integer("moe_intermediate_size"),
        shared_inter=keys.integer("shared_expert_intermediate_size"),
    )
