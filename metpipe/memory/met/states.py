"""Recurrent states and paged caches of a serve (section 11)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory import formulas
from metpipe.memory.met.engine_counts import EngineCounts
from metpipe.memory.planned import StateGroup
from metpipe.memory.report import Holding, StateBytes

__all__ = ["Pool", "StateFormats", "state_rows"]


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks of a paged pool, and the tokens of one."""

    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class StateFormats:
    """What the `{key}` formats of the circuit's states stand for."""

    kv_cache_dtype: str
    draft_kv_cache_dtype: str
    ssm_h_storage: str

    def of(self, group: StateGroup) -> str:
        """A state's dtype.

        Raises:
            ConfigError: a key that nothing states, a dtype without an element size.
        """
        draft = group.section == "draft"
        named = {
            "{kv_cache_dtype}": self.draft_kv_cache_dtype if draft else self.kv_cache_dtype,
            "{ssm_h_storage}": self.ssm_h_storage,
        }
        if not group.format.startswith("{"):
            return group.format
        if group.format not in named:
            raise ConfigError(f"{group.local}: nothing states its format {group.format}")
        dtype = named[group.format]
        formulas.element_bytes(dtype, f"serve.{FLAGS[group.format]}={dtype}, of {group.local}")
        return dtype


FLAGS = {"{kv_cache_dtype}": "kv_cache_dtype", "{ssm_h_storage}": "ssm_h_dtype"}
"""Key of a format -> the flag that states it."""


def state_rows(
    groups: tuple[StateGroup, ...],
    formats: StateFormats,
    counts: EngineCounts,
    main: Pool,
    draft: Pool | None,
) -> Iterator[StateBytes]:
    """A row per state and holding; a draft's only where it has a pool of blocks.

    Raises:
        ConfigError: a dtype without an element size; a recurrent state that a verify cannot undo.
    """
    for group in groups:
        pool = draft if group.section == "draft" else main
        if group.kind == "paged_kv" and pool is not None:
            units = pool.blocks * pool.block_size
            yield row(group, formats.of(group), "blocks", "model", units)
        elif group.kind == "recurrent" and pool is not None:
            yield from _recurrent(group, formats.of(group), counts)


def _recurrent(group: StateGroup, dtype: str, counts: EngineCounts) -> Iterator[StateBytes]:
    """A slot per sequence and a dummy; beside them what a verify may have to go back to."""
    yield row(group, dtype, "live", "sequence", counts.slots + 1)
    if counts.speculates:
        yield row(group, dtype, "steps", "verify", _step_units(group, counts))
        yield row(group, dtype, "checkpoint", "verify", counts.verify.count)


def _step_units(group: StateGroup, counts: EngineCounts) -> int:
    match group.verify:
        case "h_steps":
            return counts.verify.h_units
        case "conv_steps":
            return counts.verify.conv_units
    raise ConfigError(
        f"{group.local}: declares no `verify`, so nothing says what speculation keeps of it; set "
        "serve.speculative=false"
    )


def row(group: StateGroup, dtype: str, holding: Holding, lifetime: str, units: int) -> StateBytes:
    """One holding of a state: `units` a layer."""
    unit = group.elements * formulas.element_bytes(dtype, group.local)
    return StateBytes(
        local=group.local,
        kind=group.kind,
        holding=holding,
        lifetime=lifetime,
        dtype=dtype,
        section=group.section,
        states=group.states,
        units=units,
        unit_bytes=unit,
        bytes=len(group.states) * units * unit,
    )
