"""One question to the evaluator: which model, on which device, with which flags, at which load."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory.devices import Device, DeviceRefusal
from metpipe.memory.met.side import MetSide
from metpipe.memory.parallel import Parallel
from metpipe.memory.planned import Planned
from metpipe.memory.serve import Serve
from metpipe.nouns import number_of

__all__ = ["WIDEST_AUTO", "Boot", "Point", "Workload", "refuse_impossible"]

WIDEST_AUTO = 128
"""The most sequences that are asked about when the slots follow them."""

MOST = 2**31 - 1
"""Positions and slots are i32 in a step's inputs."""


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


def refuse_impossible(point: Point) -> None:
    """What no serve can do, before anything is counted.

    Raises:
        ConfigError: more sequences than slots, a sequence longer than the serve allows, a count
            below one or beyond i32, a device without a known size, a utilisation that the device
            refuses.
    """
    _refuse_counts(point)
    load, serve = point.workload, point.serve
    if load.concurrency > point.num_slots:
        raise ConfigError(
            f"workload.concurrency={load.concurrency} is more than the "
            f"{number_of(point.num_slots, 'slot')}; lower it, or raise "
            "serve.max_batch_size (or slots, where it is given)"
        )
    if point.num_tokens > serve.max_seq_len:
        raise ConfigError(
            f"workload.isl={load.isl} and workload.osl={load.osl} are {point.num_tokens} tokens, "
            f"above serve.max_seq_len={serve.max_seq_len}; shorten the workload or raise "
            "serve.max_seq_len"
        )
    _refuse_device(point.device, serve.gpu_memory_utilization)


def _refuse_counts(point: Point) -> None:
    counts = {
        "serve.block_size": point.serve.block_size,
        "serve.max_seq_len": point.serve.max_seq_len,
        "serve.max_prefill_tokens": point.serve.max_prefill_tokens,
        "slots": point.num_slots,
        "workload.isl": point.workload.isl,
        "workload.osl": point.workload.osl,
        "workload.concurrency": point.workload.concurrency,
    }
    if point.met is not None:
        what_ifs = point.met.what_ifs
        asked = {"tree_nodes": what_ifs.tree_nodes, "capture_rows": what_ifs.capture_rows}
        counts |= {name: count for name, count in asked.items() if count}
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: must be at least 1, got {count}")
        if count > MOST:
            raise ConfigError(
                f"{name}={count}: more than {MOST}, the most that positions and slots can name"
            )


def _refuse_device(device: Device, utilization: float) -> None:
    where = f"serve.gpu_memory_utilization={utilization}"
    if not 0 < utilization <= 1:
        raise ConfigError(f"{where}: a share above 0 and at most 1 is needed")
    if device.memory_bytes is None:
        raise DeviceRefusal(
            f"hardware={device.id}: its memory is unknown; add +hardware.memory_bytes=BYTES",
            "their memory is unknown",
        )
    if device.strict and device.driver is not None and utilization > device.driver.util_ceiling:
        raise DeviceRefusal(
            f"{where} is above the ceiling {device.driver.util_ceiling} of {device.device_class}; "
            "lower it or set hardware.strict=false",
            f"{where} is above the ceiling of their class, and hardware.strict is true",
        )
    if device.require_calibrated and device.kind == "gpu" and device.driver is None:
        raise DeviceRefusal(
            f"hardware={device.id}: the class {device.device_class} declares no [memory] table, so "
            "its driver term is a range; choose a calibrated device or set "
            "hardware.require_calibrated=false",
            "nobody calibrated their class, and hardware.require_calibrated is true",
        )
