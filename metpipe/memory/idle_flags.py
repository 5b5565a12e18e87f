"""Serve flags whose value sizes nothing of a plan: of a draft head, and of recurrent states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from metpipe.circuit import Circuit
from metpipe.errors import ConfigError

__all__ = ["Idle", "idle_flags", "refuse_typed"]

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "mtp_quantization": ("declared", "bf16"),
    "ssm_rollback_mode": ("snapshot",),
    "ssm_decode_ring_slots": (None,),
    "ssm_cache_slots": (16, 0),
    "ssm_h_dtype": ("f32",),
}
"""Flag -> its default, and what asks for nothing beside it: these values need no reader."""
NO_STATES = "the model has no recurrent states"
NO_CACHE = "no prefix cache is kept (serve.enable_prefix_caching is false)"


@dataclass(frozen=True, slots=True)
class Idle:
    """A flag at a value that changes no byte, and why."""

    flag: str
    value: object
    why: str

    @property
    def key(self) -> str:
        """As it is typed."""
        return f"serve.{self.flag}"


def idle_flags(flags: Mapping[str, object], circuit: Circuit, accounting: str) -> tuple[Idle, ...]:
    """The serve flags that ask for something which the accounting would count nothing for."""
    reasons = dict(_of_met(flags, circuit) if accounting == "met" else _of_metpipe())
    if not any(state.kind == "recurrent" for state in circuit.states.values()):
        reasons |= dict.fromkeys((flag for flag in NEUTRAL if flag.startswith("ssm_")), NO_STATES)
    return tuple(
        Idle(flag, flags[flag], reasons[flag])
        for flag, neutral in NEUTRAL.items()
        if flag in reasons and flags.get(flag, neutral[0]) not in neutral
    )


def refuse_typed(idle: Collection[Idle], typed: Collection[str]) -> None:
    """Refuse those that somebody typed; a recipe and a boot state flags for other models too.

    Raises:
        ConfigError: naming the first.
    """
    for flag in idle:
        if flag.key in typed:
            raise ConfigError(
                f"{flag.key}={flag.value}: sizes nothing of this plan, since {flag.why}; leave it "
                "out"
            )


def _of_metpipe() -> Iterator[tuple[str, str]]:
    yield "mtp_quantization", "this engine plans a draft head as the checkpoint stores it"
    yield "ssm_rollback_mode", "this engine keeps snapshots of a verify's states"
    yield "ssm_decode_ring_slots", "this engine has no decode ring"
    yield "ssm_cache_slots", "this engine keeps no prefix cache"


def _of_met(flags: Mapping[str, object], circuit: Circuit) -> Iterator[tuple[str, str]]:
    drafts = any(
        state.kind == "paged_kv" and state.section == "draft" for state in circuit.states.values()
    )
    if not drafts:
        yield "mtp_quantization", "the model has no draft head"
    elif not flags.get("speculative"):
        yield "mtp_quantization", "its draft head does not run (serve.speculative is false)"
    if not (flags.get("speculative") or flags.get("dflash")):
        yield "ssm_rollback_mode", "nothing is verified (serve.speculative is false)"
    yield "ssm_decode_ring_slots", "met's engine chooses the depth of its ring by itself"
    if not flags.get("enable_prefix_caching"):
        yield "ssm_cache_slots", NO_CACHE
