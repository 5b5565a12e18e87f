"""What the executed engine does with each serve flag: honours it, or refuses it by name.

A flag that shapes the forward and is neither would be a silent lie, so the table below must hold
every key of the serve section (a test walks them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError

__all__ = ["FLAGS", "ExecutedServe", "executed_serve"]

HONOURED = "honoured"
PLANNED = "planned"
"""Bounds a plan; no forward depends on it."""


@dataclass(frozen=True, slots=True)
class Only:
    """The values this engine executes; any other is refused."""

    values: tuple[object, ...]
    why: str
    planned: bool = False
    """a memory plan takes other values too"""


HEAD_ONLY = Only((0, None), "run the diff on the head")
ONE_DEVICE = Only((1, None), "the engine executes one rank on one device", planned=True)
BY_THE_DIFF = "drafts run where the diff asks for them, by verify=[K] mtp=true"
NO_DRAFTS = Only((False, None), BY_THE_DIFF, planned=True)
NO_DRAFTER = "the engine has no drafter beside the model's own head"

FLAGS: Mapping[str, str | Only] = {
    "rank": HEAD_ONLY,
    "max_seq_len": HONOURED,
    "block_size": HONOURED,
    "max_prefill_tokens": HONOURED,
    "max_batch_size": PLANNED,
    "kv_cache_dtype": Only(("bf16", None), "the kernel sets keep KV in bf16", planned=True),
    "lm_head_dtype": Only(("default", "bf16", None), "the kernel sets run a bf16 head"),
    "weight_quantization": Only(("declared", "bf16", None), "the kernel sets run bf16 weights"),
    "expert_quantization": Only(("declared", "bf16", None), "the kernel sets run bf16 experts"),
    "mtp_quantization": Only(
        ("declared", "bf16", None), "the kernel sets run a bf16 draft head", planned=True
    ),
    "speculative": NO_DRAFTS,
    "dflash": Only((False, None), NO_DRAFTER),
    "dflash_gamma": Only((None,), NO_DRAFTER, planned=True),
    "num_drafts": PLANNED,
    "mtp_max_seqs": PLANNED,
    "ssm_h_dtype": Only(
        ("f32", None), "the kernel sets keep the recurrent state in f32", planned=True
    ),
    "ssm_rollback_mode": Only(
        ("snapshot", None), "the engine keeps a state after each row", planned=True
    ),
    "ssm_cache_slots": PLANNED,
    "ssm_decode_ring_slots": PLANNED,
    "enable_prefix_caching": Only((False, None), "the engine computes every prefill"),
    "high_speed_swap": Only(
        (False, None), "the engine keeps every block on its device", planned=True
    ),
    "graphs": PLANNED,
    "gpu_memory_utilization": PLANNED,
    "tensor_parallel_size": ONE_DEVICE,
    "pipeline_parallel_size": ONE_DEVICE,
    "expert_parallel_size": ONE_DEVICE,
}
"""In the order in which they are refused: a rank behind the head is told so first."""


@dataclass(frozen=True, slots=True)
class ExecutedServe:
    """The serve flags that shape what this engine allocates and runs."""

    max_seq_len: int
    block_size: int
    max_prefill_tokens: int


def executed_serve(serve: Mapping[str, object]) -> ExecutedServe:
    """The flags as the engine executes them.

    Raises:
        ConfigError: a flag asks for what this engine does not execute; planning still can.
    """
    for name, rule in FLAGS.items():
        if isinstance(rule, Only) and serve[name] not in rule.values:
            planned = ", or plan it with pipeline=memory" if rule.planned else ""
            raise ConfigError(
                f"serve.{name}={_text(serve[name])} is not executed: {rule.why}; leave it at "
                f"{_shown(rule.values)}{planned}"
            )
    numbers = {name: int(str(serve[name])) for name, rule in FLAGS.items() if rule == HONOURED}
    return ExecutedServe(**numbers)


def _shown(values: tuple[object, ...]) -> str:
    return " or ".join(_text(value) for value in values if value is not None) or "null"


def _text(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)
