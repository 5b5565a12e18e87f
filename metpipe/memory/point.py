"""One question to the evaluator: which model, on which device, with which flags, at which load."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.memory.devices import Device
from metpipe.memory.met.side import MetSide
from metpipe.memory.parallel import Parallel
from metpipe.memory.planned import Planned
from metpipe.memory.serve import Serve

__all__ = ["WIDEST_AUTO", "Boot", "Point", "Workload"]

WIDEST_AUTO = 128
"""The most sequences that are asked about when the slots follow them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` sequences in flight, each of `isl` prompt and `osl` generated tokens."""

    isl: int
    osl: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Boot:
    """What an engine really sized, when the plan is checked against its ledger.

    `runs` are the programs it compiled: (mode, rows) pairs, rows as launched.
    """

    kv_blocks: int
    slots: int
    runs: tuple[tuple[str, int], ...]
    snapshot_rows: int = 0
    """recurrent states kept between the rows of a verify, over all its sequences"""


@dataclass(frozen=True, slots=True)
class Point:
    """Everything that `evaluate` reads. Points of one model share its `planned` cache.

    `slots` (None: max_batch_size) sizes the pool of recurrent states and bounds the concurrency;
    where `slots_follow`, there are as many as sequences. `threads` is what a workspace expression
    may name; None when no machine executes. `met` is what the accounting of that name reads beside.
    Where ranks share the model, `parallel` has all of them and `planned` is of the one looked at.
    `max_positions` is the longest sequence that the model was made for, None where nothing says it.
    """

    planned: Planned
    device: Device
    serve: Serve
    workload: Workload
    accounting: str = "metpipe"
    slots: int | None = None
    threads: int | None = None
    boot: Boot | None = None
    slots_follow: bool = False
    met: MetSide | None = None
    parallel: Parallel | None = None
    max_positions: int | None = None

    @property
    def num_slots(self) -> int:
        """Sequences that the pool of states has room for, without the dummy."""
        if self.slots_follow:
            return self.workload.concurrency
        return self.serve.max_batch_size if self.slots is None else self.slots

    @property
    def widest(self) -> int:
        """The most sequences at once that the serve could be asked for."""
        return WIDEST_AUTO if self.slots_follow else self.num_slots

    @property
    def num_tokens(self) -> int:
        """Tokens of a finished sequence."""
        return self.workload.isl + self.workload.osl

    @property
    def longest(self) -> int:
        """The longest sequence: what the serve allows, and the model was made for."""
        limit = self.serve.max_seq_len
        return limit if self.max_positions is None else min(limit, self.max_positions)

    @property
    def draft_layers(self) -> int:
        """Layers of the model's draft head, on whichever rank; 0 without one."""
        parts = [self.planned]
        if self.parallel is not None:
            parts = [stage.planned for stage in self.parallel.stages]
        groups = (group for part in parts for group in part.states if group.section == "draft")
        return max((len(group.states) for group in groups), default=0)

    @property
    def has_draft_head(self) -> bool:
        """Whether the model has one, on whichever rank."""
        return self.draft_layers > 0
