"""The serve flags that met's engine sizes by, beside those of every serve (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory.serve import Serve, read_serve

__all__ = ["MetFlags", "met_flags", "met_serve"]

TIERS = ("declared", "nvfp4")
"""Tiers of weights whose copies the rules know."""

RANKS = "met's instrument plans one device and one process; memory.accounting=metpipe plans ranks"
UNCOUNTED: Mapping[str, tuple[object, str]] = {
    "high_speed_swap": (False, "it narrows a prefill's steps, and nothing says by how much"),
    "graphs": (None, "captured launches are in the driver's fixed part"),
    "tensor_parallel_size": (1, RANKS),
    "pipeline_parallel_size": (1, RANKS),
    "expert_parallel_size": (1, RANKS),
    "rank": (0, RANKS),
}
"""Flags for which met's model has no term -> the value that asks for nothing, and why."""


@dataclass(frozen=True, slots=True)
class MetFlags:
    """The flags; None is a flag that is not given."""

    lm_head_dtype: str
    weight_quantization: str
    expert_quantization: str
    mtp_quantization: str
    speculative: bool
    dflash: bool
    dflash_gamma: int | None
    num_drafts: int | None
    mtp_max_seqs: int | None
    ssm_rollback_mode: str
    ssm_cache_slots: int
    ssm_decode_ring_slots: int | None
    enable_prefix_caching: bool

    @property
    def speculates(self) -> bool:
        """Whether any proposer is requested."""
        return self.speculative or self.dflash


OWN_KV = "fp8"
"""What that engine keeps keys and values in where neither a flag nor a model's target says it."""


def met_serve(flags: Mapping[str, object], targets_kv: str | None = None) -> Serve:
    """The flags of every serve, with what this accounting cannot count refused by name.

    `targets_kv`: the dtype of keys and values that the model's kernel target has by itself.

    Raises:
        ConfigError: an unknown flag, one of a wrong type, one that asks for what has no term.
    """
    known = set(Serve.__dataclass_fields__) | set(MetFlags.__dataclass_fields__) | set(UNCOUNTED)
    if unknown := set(flags) - known:
        raise ConfigError(f"serve.{min(unknown)}: not a serve flag that this accounting knows")
    for name, (neutral, why) in UNCOUNTED.items():
        if flags.get(name, neutral) != neutral:
            raise ConfigError(
                f"serve.{name}={flags[name]}: the met accounting has no term for it ({why}); set "
                f"serve.{name}={'null' if neutral is None else str(neutral).lower()}"
            )
    asked = flags.get("kv_cache_dtype")
    return read_serve({**flags, "kv_cache_dtype": asked or targets_kv or OWN_KV})


def met_flags(flags: Mapping[str, object]) -> MetFlags:
    """The other flags.

    Raises:
        ConfigError: a flag is missing, or its value has no meaning for this accounting.
    """
    if missing := [name for name in MetFlags.__dataclass_fields__ if name not in flags]:
        raise ConfigError(f"serve.{missing[0]}: the met accounting needs it, and it is not stated")
    found = MetFlags(**{name: flags[name] for name in MetFlags.__dataclass_fields__})  # type: ignore[arg-type]
    if found.weight_quantization not in TIERS:
        raise ConfigError(
            f"serve.weight_quantization={found.weight_quantization}: met serves the tiers "
            f"{' and '.join(TIERS)}, and no rule knows the copies of another"
        )
    if found.dflash and found.dflash_gamma is None:
        raise ConfigError("serve.dflash=true: needs serve.dflash_gamma, its drafts per step")
    return found
