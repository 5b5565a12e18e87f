"""What drafts brought: how many were accepted, and what a token cost beside plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.diff.trace import Trace

__all__ = ["Acceptance", "acceptance_of"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A run of verify steps whose drafts the model's own head made. Times in milliseconds."""

    width: int
    drafted: int
    accepted: int
    by_place: tuple[float, ...]
    """share of steps that accepted the first draft, the first two, ..."""
    tokens_per_step: float
    ms_per_token: float | None
    """verify and drafts; None where there is only one step, whose kernels may compile"""
    plain_ms_per_token: float | None

    @property
    def rate(self) -> float:
        """Accepted drafts over drafts."""
        return self.accepted / self.drafted

    @property
    def speedup(self) -> float | None:
        """Plain decoding's time of a token over this one's."""
        if self.ms_per_token is None or self.plain_ms_per_token is None:
            return None
        return self.plain_ms_per_token / self.ms_per_token


def acceptance_of(trace: Trace, width: int, plain: Trace) -> Acceptance:
    """The figures of one sequence's speculative run, and of the same prompt decoded plainly."""
    counts = [count for (count,) in trace.accepted]
    steps, drafts = len(counts), width - 1
    later = range(1, steps)
    tokens = sum(counts[step] + 1 for step in later)
    spent = sum(trace.step_ms[step] + trace.draft_ms[step] for step in later)
    alone = plain.step_ms[1:]
    return Acceptance(
        width=width,
        drafted=steps * drafts,
        accepted=sum(counts),
        by_place=tuple(
            sum(count >= place for count in counts) / steps for place in range(1, width)
        ),
        tokens_per_step=(sum(counts) + steps) / steps,
        ms_per_token=spent / tokens if tokens else None,
        plain_ms_per_token=sum(alone) / len(alone) if alone else None,
    )
