"""The legs of the invariance table as data: which cases run, and which rows must be the same.

Every leg is held against `alone`: the prompt prefilled whole and decoded row by row in slot 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Point
from metpipe.diff.prompts import batch_prompts, prompt_of_len
from metpipe.stages.invariance.widths import widths_up_to
from metpipe.stages.modes.case import Case

__all__ = ["Planned", "Table", "Tokens", "alone", "changed", "legs", "needed_cases", "repeated"]

MODE = "invariance"
CHUNKED = 65
"""Tokens of the prompt that is prefilled in chunks: four blocks and one token."""
CHUNKS = (1, 16, 37, 64)
FRAGMENTED = 5
TENANT = 150
"""Tokens of the sequence that had the slot before: longer than any prompt of the table."""
VERIFY_WIDTHS = (2, 3, 4, 5, 8)

Tokens = Sequence[Sequence[int]]
"""Per prompt of the table, the tokens that are decoded behind it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The prompts that every leg takes its rows from, and how far they are decoded."""

    prompts: tuple[tuple[int, ...], ...]
    others: tuple[tuple[int, ...], ...]
    """as long as `prompts`, other tokens"""
    chunked: tuple[int, ...]
    tenant: tuple[int, ...]
    steps: int
    limit: int

    @property
    def num_prompts(self) -> int:
        """Those of the batches, and the chunked one behind them."""
        return len(self.prompts) + 1

    @classmethod
    def of(cls, limit: int, steps: int, vocab_size: int) -> Table:
        """For widths up to `limit`."""
        prompts = [tuple(prompt) for prompt in batch_prompts(limit, vocab_size)]
        other = max(map(tuple, batch_prompts(2 * limit, vocab_size)), key=len)
        return cls(
            prompts=tuple(prompts),
            others=tuple(other[: len(prompt)] for prompt in prompts),
            chunked=tuple(prompt_of_len(CHUNKED, vocab_size)),
            tenant=tuple(prompt_of_len(TENANT, vocab_size)),
            steps=steps,
            limit=limit,
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A leg: its case, what it is fed, and which of its rows are which of the prompts alone."""

    axis: str
    name: str
    case: Case
    fed: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...] = ()
    rows: tuple[tuple[int, Point], ...] = ()
    """(prompt, point): ours is a row of that prompt alone"""
    ends: tuple[tuple[int, int], ...] = ()
    """(prompt, sequence of the leg) whose states at the end must be the same"""


def alone(table: Table, index: int) -> Case:
    """A prompt of the table, decoded alone; the chunked one has the index of none."""
    prompt = table.chunked if index == len(table.prompts) else table.prompts[index]
    return Case(MODE, f"alone {index}", (prompt,), table.steps)


def repeated(table: Table, tokens: Tokens) -> Planned:
    """The first prompt alone once more: what differs here is no axis, it does not repeat."""
    case = alone(table, 0)
    return _batch(table, tokens, "repeat", "alone, once more", 1, case)


def changed(table: Table, tokens: Tokens, vocab_size: int) -> tuple[Planned, int]:
    """The first prompt alone with the token half way changed, and that step."""
    case, at = alone(table, 0), table.steps // 2
    fed = list(tokens[0])
    fed[at] = (fed[at] + 1) % vocab_size
    rows = _rows(table, (0,))
    return Planned("changed", "a token changed", case, tuple((t,) for t in fed), (), rows), at


def legs(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """Every leg of the table."""
    yield from _widths(table, tokens)
    yield from _paddings(table, tokens)
    yield from _slots(table, tokens)
    yield from _neighbours(table, tokens)
    yield from _verifies(table, tokens)
    yield from _chunks(table, tokens)
    yield _decoded(table, tokens)


def needed_cases(table: Table) -> tuple[Case, ...]:
    """Every case that the table runs, for the sizes of the pools."""
    tokens = [(0,) * table.steps] * table.num_prompts
    first = tuple(alone(table, index) for index in range(table.num_prompts))
    return first + tuple(leg.case for leg in legs(table, tokens))


def _batch(table: Table, tokens: Tokens, axis: str, name: str, count: int, case: Case) -> Planned:
    """The first `count` prompts side by side, each row against its prompt alone."""
    fed = tuple(zip(*(tokens[i] for i in range(count)), strict=True))
    return Planned(axis, name, case, fed, (), _rows(table, range(count)), _ends(range(count)))


def _rows(table: Table, prompts: Sequence[int]) -> tuple[tuple[int, Point], ...]:
    """Row i of every step, and before the first, is prompt i's."""
    return tuple(
        (prompt, Point((step, 0), (step, row)))
        for step in range(PREFILL, table.steps)
        for row, prompt in enumerate(prompts)
    )


def _ends(prompts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((prompt, row) for row, prompt in enumerate(prompts))


def _widths(table: Table, tokens: Tokens) -> Iterator[Planned]:
    for width in widths_up_to(table.limit):
        case = Case(MODE, f"width {width}", table.prompts[:width], table.steps)
        yield _batch(table, tokens, "width", f"alone against width {width}", width, case)


def _paddings(table: Table, tokens: Tokens) -> Iterator[Planned]:
    for width in widths_up_to(table.limit):
        case = Case(MODE, f"exact {width}", table.prompts[:width], table.steps, padded=False)
        name = f"padded against exactly {width} rows"
        yield _batch(table, tokens, "padding", name, width, case)


def _slots(table: Table, tokens: Tokens) -> Iterator[Planned]:
    prompt = table.prompts[:1]
    last = Case(MODE, "last slot", prompt, table.steps, held=table.limit - 1)
    yield _batch(table, tokens, "slot", f"slot 0 against slot {table.limit - 1}", 1, last)
    reused = Case(MODE, "reused slot", prompt, table.steps, tenant=table.tenant)
    name = f"a fresh slot against one that {len(table.tenant)} tokens were in"
    yield _batch(table, tokens, "slot", name, 1, reused)
    width = min(FRAGMENTED, table.limit)
    gap = Case(MODE, "fragmented", table.prompts[:width], table.steps, fragmented=True)
    name = f"slot 0 against {width} fragmented slots and scattered blocks"
    yield _batch(table, tokens, "slot", name, width, gap)
    moved = Case(MODE, "spilled", prompt, table.steps, spill=table.steps // 2)
    yield _batch(table, tokens, "slot", "one slot against another that it was spilled to", 1, moved)


def _neighbours(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """All rows but one get other prompts and other tokens."""
    for width in sorted({2, min(FRAGMENTED, table.limit), table.limit}):
        kept = width // 2
        prompts = tuple(table.prompts[i] if i == kept else table.others[i] for i in range(width))
        case = Case(MODE, f"neighbours of {kept}", prompts, table.steps)
        fed = tuple(
            tuple(tokens[i][step] if i == kept else tokens[i][0] for i in range(width))
            for step in range(table.steps)
        )
        rows = tuple((kept, Point((step, 0), (step, kept))) for step in range(PREFILL, table.steps))
        name = f"row {kept} of {width} beside other neighbours"
        yield Planned("neighbours", name, case, fed, (), rows, ((kept, kept),))


def _verifies(table: Table, tokens: Tokens) -> Iterator[Planned]:
    for width in VERIFY_WIDTHS:
        if table.steps >= width:
            yield _accepting(table, tokens, width)
        yield _rejecting(table, tokens, width)


def _accepting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is right: row j of step s is decode step s * K + j."""
    steps = table.steps // width
    case = Case("verify", f"K={width}, accepting", table.prompts[:1], steps, widths=(width,))
    fed = tuple(tuple(tokens[0][s * width : (s + 1) * width]) for s in range(steps))
    points = tuple(
        (0, Point((s * width + j, 0), (s, j))) for s in range(steps) for j in range(width)
    )
    rows = ((0, Point((PREFILL, 0), (PREFILL, 0))), *points)
    ends = ((0, 0),) if steps * width == table.steps else ()
    name = f"decode against verify K={width}, all accepted"
    return Planned("verify", name, case, fed, ((width - 1,),) * steps, rows, ends)


def _rejecting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is wrong: row 0 of step s is decode step s, whatever was rolled back."""
    case = Case("verify", f"K={width}, rejecting", table.prompts[:1], table.steps, widths=(width,))
    wrong = tokens[0][0]
    fed = tuple((tokens[0][s],) + (wrong,) * (width - 1) for s in range(table.steps))
    rows = tuple((0, Point((s, 0), (s, 0))) for s in range(PREFILL, table.steps))
    name = f"decode against verify K={width}, all rejected"
    return Planned("verify", name, case, fed, ((0,),) * table.steps, rows, ((0, 0),))


def _chunks(table: Table, tokens: Tokens) -> Iterator[Planned]:
    index = len(table.prompts)
    fed = tuple((token,) for token in tokens[index])
    for chunk in CHUNKS:
        case = Case(MODE, f"chunks of {chunk}", (table.chunked,), table.steps, chunk=chunk)
        name = f"{len(table.chunked)} tokens prefilled at once against chunks of {chunk}"
        rows = _rows(table, (index,))
        yield Planned("prefill_chunks", name, case, fed, (), rows, ((index, 0),))


def _decoded(table: Table, tokens: Tokens) -> Planned:
    """The prompt's tokens one by one: the last of them has the prefill's row, then they go on."""
    index, prompt = len(table.prompts), table.chunked
    forced = (*prompt[1:], *tokens[index])
    case = Case(MODE, "decoded prompt", (prompt[:1],), len(forced))
    before = len(prompt) - 2
    rows = tuple(
        (index, Point((step, 0), (before + 1 + step, 0))) for step in range(PREFILL, table.steps)
    )
    fed = tuple((token,) for token in forced)
    name = f"{len(prompt)} tokens prefilled against decoded"
    return Planned("prefill_decode", name, case, fed, (), rows, ((index, 0),))
