"""Prepares what the accounting reads of a model and of a serve, once for many points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from metpipe.circuit import Circuit
from metpipe.memory.met.arena_range import find_gaps
from metpipe.memory.met.behaviour import Behaviour, find_behaviour
from metpipe.memory.met.caches import declared_caches
from metpipe.memory.met.copies import CopyRule
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.served import head_format, settings_of
from metpipe.memory.met.shape import shape_of
from metpipe.memory.met.side import MetModel, MetSide, Outside, WhatIfs
from metpipe.memory.met.versions import Version
from metpipe.memory.met.weights import Weights, declared_head, weights_of

__all__ = ["met_model", "prepare", "with_setting"]


def met_model(
    circuit: Circuit,
    rules: tuple[CopyRule, ...],
    behaviours: Sequence[Behaviour],
    version: Version,
) -> MetModel:
    """The model of a circuit whose nodes carry the declared formats.

    Raises:
        ConfigError: a dim is absent.
    """
    behaviour = find_behaviour(behaviours, circuit)
    shape = shape_of(circuit)
    return MetModel(
        arch=circuit.arch,
        circuit=circuit,
        shape=shape,
        caches=declared_caches(circuit, shape),
        rules=rules,
        caps=(0, 0) if behaviour is None else (behaviour.num_drafts, behaviour.mtp_max_seqs),
        kv_dtype=None if behaviour is None else behaviour.kv_dtype or None,
        behaviour=None if behaviour is None else behaviour.source,
        version=version,
        drafts=any(
            state.kind == "paged_kv" and state.section == "draft"
            for state in circuit.states.values()
        ),
        gaps=find_gaps(circuit, shape),
    )


def prepare(
    model: MetModel, flags: MetFlags, outside: Outside, what_ifs: WhatIfs | None = None
) -> MetSide:
    """The side of every point of a model under these flags; expert tables are built.

    Raises:
        ConfigError: a format, a dim or a size that a weight or copy needs and nothing gives.
    """
    head = head_format(declared_head(model.circuit), flags)
    settings = settings_of(model.circuit, flags, head)
    return MetSide(
        model=model,
        flags=flags,
        what_ifs=what_ifs or WhatIfs(),
        head=head,
        settings=settings,
        weights=_weights(model, flags, settings),
        outside=outside,
    )


def with_setting(side: MetSide, **changed: str) -> MetSide:
    """The side with other settings, and the copies that follow."""
    settings: Mapping[str, str] = {**side.settings, **changed}
    weights = _weights(side.model, side.flags, settings)
    return replace(side, settings=settings, weights=weights)


def _weights(model: MetModel, flags: MetFlags, settings: Mapping[str, str]) -> Weights:
    """Kept from one point to the next: a query asks for the same weights under many flags."""
    return _kept_weights(model, replace(flags, **SIZING), tuple(sorted(settings.items())))


@lru_cache(maxsize=16)
def _kept_weights(
    model: MetModel, flags: MetFlags, settings: tuple[tuple[str, str], ...]
) -> Weights:
    return weights_of(model.circuit, flags, model.rules, dict(settings))


SIZING: Mapping[str, Any] = {
    "dflash_gamma": None,
    "num_drafts": None,
    "mtp_max_seqs": None,
    "ssm_rollback_mode": "snapshot",
    "ssm_cache_slots": 0,
    "ssm_decode_ring_slots": None,
    "enable_prefix_caching": False,
}
"""Flags that size pools and caches, at values that stand for all: no weight depends on them."""
