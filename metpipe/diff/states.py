"""State digests compared: label -> hex, as a run recorded them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["differing_labels"]


def differing_labels(reference: Mapping[str, str], run: Mapping[str, str]) -> tuple[str, ...]:
    """Labels whose digests differ or that one side lacks, in the reference's order.

    Serves two questions: a run's states against the reference's, and unowned bytes at the end of a
    run against its start.
    """
    labels = [*reference, *(label for label in run if label not in reference)]
    return tuple(label for label in labels if reference.get(label) != run.get(label))
