"""Plans every byte of a serve: formulas on integers, counts of an accounting, readers of files."""

from __future__ import annotations

from metpipe.memory.attribution import NodeShare, node_shares
from metpipe.memory.devices import Device, Devices, device_from_config, find_device, match_device
from metpipe.memory.evaluate import ACCOUNTINGS, evaluate
from metpipe.memory.fixes import Fix, fixes
from metpipe.memory.inverse import Inverse, Question, answered, largest_fitting
from metpipe.memory.kernel_set import KernelSet, read_kernel_set
from metpipe.memory.ledger import LedgerRow, check_ledger
from metpipe.memory.parallel import Parallel, share_out
from metpipe.memory.planned import Planned, StateGroup
from metpipe.memory.point import Boot, Point, Workload
from metpipe.memory.queries import (
    max_concurrency,
    max_isl,
    max_osl,
    max_slots,
    max_snapshot_slots,
    max_verify,
    min_device,
    min_utilization,
    questions,
)
from metpipe.memory.record import to_record
from metpipe.memory.registry import read_devices
from metpipe.memory.report import MemoryReport, Term
from metpipe.memory.serve import Serve, serve_from_config
from metpipe.memory.stored import quantised_formats

__all__ = [
    "ACCOUNTINGS",
    "Boot",
    "Device",
    "Devices",
    "Fix",
    "Inverse",
    "KernelSet",
    "LedgerRow",
    "MemoryReport",
    "NodeShare",
    "Parallel",
    "Planned",
    "Point",
    "Question",
    "Serve",
    "StateGroup",
    "Term",
    "Workload",
    "answered",
    "check_ledger",
    "device_from_config",
    "evaluate",
    "find_device",
    "fixes",
    "largest_fitting",
    "match_device",
    "max_concurrency",
    "max_isl",
    "max_osl",
    "max_slots",
    "max_snapshot_slots",
    "max_verify",
    "min_device",
    "min_utilization",
    "node_shares",
    "quantised_formats",
    "questions",
    "read_devices",
    "read_kernel_set",
    "serve_from_config",
    "share_out",
    "to_record",
]
