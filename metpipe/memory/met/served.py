"""The format that a serve computes a weight with: the tier's answer and the engine's own picks.

(section 4.5.) The checkpoint's declared format stands on the circuit's nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.circuit import Circuit, Node, parse_format
from metpipe.errors import ConfigError
from metpipe.memory.met.flags import MetFlags

__all__ = ["head_format", "served_format", "settings_of"]

NVFP4 = "nvfp4/g16"
PICKS = {"nvfp4": NVFP4, "bf16": "bf16"}
"""Flags that name a format outright -> the format."""


def served_format(node: Node, flags: MetFlags, head: str) -> str:
    """The served format of a node's weight matrix; `head` is that of the target's head."""
    declared = node.weight_format or "bf16"
    if node.op == "lm_head":
        drafts = node.section == "draft" and flags.speculates
        return NVFP4 if drafts else head
    if node.section == "draft" and flags.mtp_quantization in PICKS:
        return PICKS[flags.mtp_quantization]
    return _tier_format(declared, flags.weight_quantization)


def head_format(declared: str, flags: MetFlags) -> str:
    """The served format of the target's head.

    Raises:
        ConfigError: FP8 is asked of a checkpoint whose head is not FP8.
    """
    asked = flags.lm_head_dtype
    if asked in PICKS:
        return PICKS[asked]
    if asked == "default" and flags.weight_quantization == "nvfp4":
        return NVFP4
    if asked == "fp8" and parse_format(declared).kind != "fp8":
        raise ConfigError(
            f"serve.lm_head_dtype=fp8: the checkpoint's head is {declared}, and met serves an "
            "FP8 head only as it is stored; set serve.lm_head_dtype=default"
        )
    return declared


def settings_of(circuit: Circuit, flags: MetFlags, head: str) -> Mapping[str, str]:
    """What the copy rules may test (section 4.4); expert tables start as built."""
    return {
        "speculative": "on" if flags.speculates else "off",
        "weight_quantization": flags.weight_quantization,
        "lm_head_dtype": parse_format(head).kind,
        "expert_quantization": flags.expert_quantization,
        "latent_moe": "on" if circuit.dims.get("moe_latent", 0) else "off",
        "moe_expert_tables": "build",
    }


def _tier_format(declared: str, tier: str) -> str:
    """The tier `nvfp4` serves what is quantised as NVFP4, and leaves bf16 as it is.

    That bf16 stays is deduced: no rule of a known boot depends on it.
    """
    if tier == "nvfp4" and parse_format(declared).is_quantised:
        return NVFP4
    return declared
