"""What speculative decoding adds to this engine's serve: verify and draft steps, snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from metpipe.circuit import padded_rows
from metpipe.errors import ConfigError
from metpipe.memory.point import Point
from metpipe.nouns import number_of

__all__ = ["depth_notes", "draft_rows", "num_drafts", "snapshot_rows", "speculative_runs"]


def num_drafts(point: Point) -> int:
    """Drafts of each sequence and step; 0 where none are made.

    What the serve says, else one for each layer of the model's draft head: a head of D modules in
    sequence was trained to predict D tokens (DeepSeek-V3 Technical Report, 2024, section 2.2).

    Raises:
        ConfigError: the serve speculates, and the model has no draft head.
    """
    if not point.serve.speculative:
        return 0
    if not point.has_draft_head:
        raise ConfigError("serve.speculative=true: the model has no draft head; leave it false")
    return point.draft_layers if point.serve.num_drafts is None else point.serve.num_drafts


def depth_notes(point: Point) -> Iterator[str]:
    """How deep drafts go, where the model says it and not the serve."""
    if point.serve.speculative and point.serve.num_drafts is None and point.boot is None:
        yield (
            f"serve.num_drafts is null: {number_of(num_drafts(point), 'draft')} a step, one for "
            "each layer of the model's draft head"
        )


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
