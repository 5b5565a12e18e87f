"""What the `met` accounting reads of a point beside the serve and the load, prepared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit import Circuit
from metpipe.memory.met.arena_range import Gaps
from metpipe.memory.met.caches import Cache
from metpipe.memory.met.copies import CopyRule
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.shape import ModelShape
from metpipe.memory.met.versions import Version
from metpipe.memory.met.weights import Weights

__all__ = ["BootPools", "Decision", "MetModel", "MetSide", "Outside", "WhatIfs"]


@dataclass(frozen=True, slots=True)
class WhatIfs:
    """Assumptions that a plain serve does not make; all off is what one runs."""

    tree_nodes: int | None = None
    capture_rows: int = 0
    prompt_lookup: bool = False


@dataclass(frozen=True, slots=True)
class BootPools:
    """Blocks that a boot really gave to the target's and to the draft's cache."""

    kv_blocks: int
    draft_kv_blocks: int


@dataclass(frozen=True, slots=True)
class Outside:
    """Bytes of the checkpoint that no node binds, None when unknown; `why`: whence, or why not."""

    bytes: int | None
    why: str

    @property
    def said(self) -> str:
        """Whence the bytes are, or that there are none and why."""
        return f"not counted: {self.why}" if self.bytes is None else self.why


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the expert tables are built, and the room at the serve's ceiling either way."""

    tables: int
    builds: bool
    headroom_with: int
    headroom_without: int | None
    isl: int
    osl: int
    concurrency: int


@dataclass(frozen=True, slots=True, eq=False)
class MetModel:
    """A model as this accounting sees it, whatever the flags: its sizes, caches and copy rules.

    `caps` are the drafts and the dispatch cap of its target (0: unset), `kv_dtype` what that keeps
    keys and values in (None: unset), `behaviour` where they stand (None: the engine's own hold).
    """

    arch: str
    circuit: Circuit
    """with the formats that the checkpoint declares"""
    shape: ModelShape
    caches: tuple[Cache, ...]
    rules: tuple[CopyRule, ...]
    caps: tuple[int, int]
    kv_dtype: str | None
    behaviour: str | None
    version: Version
    drafts: bool
    """whether it has a draft head with a cache of its own"""
    gaps: Gaps | None = None
    """what the arena has no formula for; None where it has one for everything"""


@dataclass(frozen=True, slots=True, eq=False)
class MetSide:
    """The prepared side of a point. `head` is the served format of the target's head."""

    model: MetModel
    flags: MetFlags
    what_ifs: WhatIfs
    head: str
    settings: Mapping[str, str]
    weights: Weights
    outside: Outside
    decision: Decision | None = None
    pools: BootPools | None = None
    chunk_slack: int = 0
