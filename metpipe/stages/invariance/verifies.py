"""The legs of the axis `verify`: rows of a verify step against decode steps of the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Point
from metpipe.stages.invariance.table import (
    VERIFY_WIDTHS,
    Planned,
    Table,
    Tokens,
    all_steps,
    alone,
    point_at,
    whole_steps,
)
from metpipe.stages.modes.case import Case

__all__ = ["verifies"]


def verifies(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """Of every width: all drafts right, and all wrong."""
    for width in VERIFY_WIDTHS:
        yield _accepting(table, tokens, width)
        yield _rejecting(table, tokens, width)


def _accepting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is right: row j of step s is decode step s * K + j."""
    steps = whole_steps(table.steps, width)
    index = table.ending_at(steps * width)
    key = alone(table, index).name
    case = Case("verify", f"K={width}, accepting", table.prompts[:1], steps, widths=(width,))
    places = [(s, j) for s in range(steps) for j in range(width)]
    points = (point_at(PREFILL, 0, 0), *(Point((s * width + j, 0), (s, j)) for s, j in places))
    return Planned(
        f"decode against verify K={width}, all accepted",
        case,
        tuple(tuple(tokens[index][s * width : (s + 1) * width]) for s in range(steps)),
        ((width - 1,),) * steps,
        rows=tuple((key, point) for point in points),
        ends=((key, 0, 0),),
        again=width == VERIFY_WIDTHS[-1],
    )


def _rejecting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is wrong: row 0 of step s is decode step s, whatever was rolled back."""
    case = Case("verify", f"K={width}, rejecting", table.prompts[:1], table.steps, widths=(width,))
    right = tokens[table.ending_at(max(table.deeper, default=table.steps))]
    fed = tuple(
        (tokens[0][s], *(_wrong(table, right, s + j) for j in range(1, width)))
        for s in range(table.steps)
    )
    key = alone(table, 0).name
    return Planned(
        f"decode against verify K={width}, all rejected",
        case,
        fed,
        ((0,),) * table.steps,
        rows=tuple((key, point_at(s, 0, 0)) for s in all_steps(table.steps)),
        ends=((key, 0, 0),),
    )


def _wrong(table: Table, right: Sequence[int], at: int) -> int:
    """The token behind the right one; past the last that is known, behind that."""
    return (right[min(at, len(right) - 1)] + 1) % table.vocab_size
