"""What speculative decoding adds to this engine's serve: verify and draft steps, snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from metpipe.circuit import padded_rows
from metpipe.errors import ConfigError
from metpipe.memory.point import Point

__all__ = ["draft_rows", "num_drafts", "snapshot_rows", "speculative_runs"]


def num_drafts(point: Point) -> int:
    """Drafts of each sequence and step; 0 where none are made.

    Raises:
        ConfigError: the serve speculates and does not say how deep, or the model has no draft head.
    """
    if not point.serve.speculative:
        return 0
    if not point.has_draft_head:
        raise ConfigError("serve.speculative=true: the model has no draft head; leave it false")
    if point.serve.num_drafts is None:
        raise ConfigError(
            "serve.num_drafts is not set, and serve.speculative=true needs it (this engine reads "
            "no behaviour file); set serve.num_drafts=1 or more"
        )
    return point.serve.num_drafts


def speculative_runs(point: Point) -> Iterator[tuple[str, int]]:
    """(mode, rows) of the widest verify, and of the draft head on the rank that has it."""
    drafts, sequences = num_drafts(point), point.workload.concurrency
    if drafts:
        yield "verify" if sequences == 1 else "verify_batch", sequences * (drafts + 1)
    if drafts and any(node.section == "draft" for node in point.planned.circuit.nodes):
        yield "draft", padded_rows(sequences)


def snapshot_rows(point: Point) -> int:
    """Recurrent states kept between the rows of the widest verify: one for each draft."""
    if point.boot is not None:
        return point.boot.snapshot_rows
    return num_drafts(point) * point.workload.concurrency


def draft_rows(runs: Iterator[tuple[str, int]]) -> int:
    """Sequences of the widest draft step; 0 where the head does not run."""
    return max((rows for mode, rows in runs if mode == "draft"), default=0)
