"""The serve flags that size something whoever's engine is counted, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError

__all__ = ["Serve", "read_serve", "serve_from_config"]


@dataclass(frozen=True, slots=True)
class Serve:
    """The serve flags that size something; lengths in tokens."""

    max_seq_len: int
    max_batch_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    ssm_h_dtype: str
    block_size: int
    max_prefill_tokens: int
    speculative: bool = False
    num_drafts: int | None = None
    """drafts of each sequence and step, where it speculates; None: not said"""
    high_speed_swap: bool = False
    graphs: bool | None = None
    """launches captured and replayed; None: where the device can"""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1


NEEDED = (
    "max_seq_len",
    "max_batch_size",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "ssm_h_dtype",
    "block_size",
    "max_prefill_tokens",
)

OFF: Mapping[str, tuple[object, ...]] = {
    "dflash": (False,),
    "enable_prefix_caching": (False,),
    "weight_quantization": ("declared", "bf16"),
    "expert_quantization": ("declared", "bf16"),
    "lm_head_dtype": ("default", "bf16"),
}
"""Flags that this engine does not serve yet -> the values that ask for nothing."""

SLEEPING = frozenset(
    {
        "dflash_gamma",
        "mtp_max_seqs",
        "mtp_quantization",
        "ssm_rollback_mode",
        "ssm_cache_slots",
        "ssm_decode_ring_slots",
    }
)
"""Flags that size nothing while speculation and prefix caching are off."""


OWN_KV = "bf16"
"""What this engine keeps keys and values in unless told otherwise."""


def serve_from_config(flags: Mapping[str, object]) -> Serve:
    """The serve flags of a config as the `metpipe` accounting reads them.

    Raises:
        ConfigError: a flag that is missing or unknown, of a wrong type, or asks for what this
            engine does not allocate.
    """
    if unknown := set(flags) - set(Serve.__dataclass_fields__) - set(OFF) - SLEEPING - {"rank"}:
        raise ConfigError(f"serve.{min(unknown)}: not a serve flag that this accounting knows")
    for name, neutral in OFF.items():
        if name in flags and flags[name] not in (None, *neutral):
            raise ConfigError(
                f"serve.{name}={_typed(flags[name])}: this engine allocates nothing for it yet, so "
                f"the metpipe accounting cannot count it; set serve.{name}={_typed(neutral[0])}"
            )
    if flags.get("rank"):
        raise ConfigError(
            f"serve.rank={flags['rank']}: a plan counts every rank and shows them all; set "
            "serve.rank=0"
        )
    own = {"kv_cache_dtype": OWN_KV} if flags.get("kv_cache_dtype", OWN_KV) is None else {}
    return read_serve({**flags, **own})


def read_serve(flags: Mapping[str, object]) -> Serve:
    """The flags of every serve, whatever stands beside them.

    Raises:
        ConfigError: a flag is missing or of a wrong type.
    """
    if missing := [name for name in NEEDED if flags.get(name) is None]:
        raise ConfigError(f"serve.{missing[0]}: the memory plan needs it; set serve.{missing[0]}")
    return Serve(
        max_seq_len=_count(flags, "max_seq_len"),
        max_batch_size=_count(flags, "max_batch_size"),
        gpu_memory_utilization=_share(flags, "gpu_memory_utilization"),
        kv_cache_dtype=_text(flags, "kv_cache_dtype"),
        ssm_h_dtype=_text(flags, "ssm_h_dtype"),
        block_size=_count(flags, "block_size"),
        max_prefill_tokens=_count(flags, "max_prefill_tokens"),
        speculative=flags.get("speculative") is True,
        num_drafts=None if flags.get("num_drafts") is None else _count(flags, "num_drafts"),
        high_speed_swap=flags.get("high_speed_swap") is True,
        graphs=None if flags.get("graphs") is None else flags["graphs"] is True,
        tensor_parallel_size=_ranks(flags, "tensor_parallel_size"),
        pipeline_parallel_size=_ranks(flags, "pipeline_parallel_size"),
        expert_parallel_size=_ranks(flags, "expert_parallel_size"),
    )


def _typed(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(flags: Mapping[str, object], name: str) -> int:
    value = flags[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"serve.{name}: a whole number of at least 1 is needed, got {value!r}")
    return value


def _ranks(flags: Mapping[str, object], name: str) -> int:
    """Ranks that share something; a flag that is not given asks for one."""
    return 1 if flags.get(name) is None else _count(flags, name)


def _share(flags: Mapping[str, object], name: str) -> float:
    value = flags[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"serve.{name}: a share above 0 and at most 1 is needed, got {value!r}")
    return float(value)


def _text(flags: Mapping[str, object], name: str) -> str:
    value = flags[name]
    if not isinstance(value, str):
        raise ConfigError(f"serve.{name}: a name is needed, got {value!r}")
    return value
