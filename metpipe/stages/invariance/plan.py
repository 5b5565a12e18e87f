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
    vocab_size: int

    @property
    def deeper(self) -> tuple[int, ...]:
        """Steps at which verifies that accept all end, where those are not the table's own."""
        ends = {_whole_verifies(self.steps, width) * width for width in VERIFY_WIDTHS}
        return tuple(sorted(ends - {self.steps}))

    @property
    def changed_step(self) -> int:
        """Where the detection control changes a token."""
        return self.steps // 2

    @property
    def num_alone(self) -> int:
        """The batches' prompts, the chunked one, the first again for each of `deeper`."""
        return len(self.prompts) + 1 + len(self.deeper)

    def ending_at(self, steps: int) -> int:
        """The index of the first prompt alone, decoded for so many steps."""
        return 0 if steps == self.steps else len(self.prompts) + 1 + self.deeper.index(steps)

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
            vocab_size=vocab_size,
        )


def _whole_verifies(steps: int, width: int) -> int:
    """Verifies of `width` rows that cover at least `steps` tokens."""
    return -(-steps // width)


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
    """A prompt decoded alone, by its index as `Table.num_alone` counts them."""
    behind = index - len(table.prompts)
    if behind < 0:
        return Case(MODE, f"alone {index}", (table.prompts[index],), table.steps)
    if behind == 0:
        return Case(MODE, "alone, chunked", (table.chunked,), table.steps)
    steps = table.deeper[behind - 1]
    return Case(MODE, f"alone 0, {steps} steps", table.prompts[:1], steps)


def repeated(table: Table, tokens: Tokens) -> Planned:
    """The first prompt alone once more: what differs here is no axis, it does not repeat."""
    case = alone(table, 0)
    return _batch(table, tokens, "repeat", "alone, once more", 1, case)


def changed(table: Table, tokens: Tokens) -> Planned:
    """The first prompt alone with the token of `changed_step` changed."""
    case, fed = alone(table, 0), list(tokens[0])
    at = table.changed_step
    fed[at] = (fed[at] + 1) % table.vocab_size
    rows = _rows(table, (0,))
    return Planned("changed", "a token changed", case, tuple((t,) for t in fed), (), rows)


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
    first = tuple(alone(table, index) for index in range(table.num_alone))
    tokens = [(0,) * case.steps for case in first]
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
        yield _accepting(table, tokens, width)
        yield _rejecting(table, tokens, width)


def _accepting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is right: row j of step s is decode step s * K + j."""
    steps = _whole_verifies(table.steps, width)
    index = table.ending_at(steps * width)
    case = Case("verify", f"K={width}, accepting", table.prompts[:1], steps, widths=(width,))
    fed = tuple(tuple(tokens[index][s * width : (s + 1) * width]) for s in range(steps))
    points = tuple(
        (index, Point((s * width + j, 0), (s, j))) for s in range(steps) for j in range(width)
    )
    rows = ((index, Point((PREFILL, 0), (PREFILL, 0))), *points)
    name = f"decode against verify K={width}, all accepted"
    return Planned("verify", name, case, fed, ((width - 1,),) * steps, rows, ((index, 0),))


def _rejecting(table: Table, tokens: Tokens, width: int) -> Planned:
    """Every draft is wrong: row 0 of step s is decode step s, whatever was rolled back."""
    case = Case("verify", f"K={width}, rejecting", table.prompts[:1], table.steps, widths=(width,))
    right = tokens[table.ending_at(max(table.deeper, default=table.steps))]
    fed = tuple(
        (tokens[0][s], *(_wrong(table, right, s + j) for j in range(1, width)))
        for s in range(table.steps)
    )
    rows = tuple((0, Point((s, 0), (s, 0))) for s in range(PREFILL, table.steps))
    name = f"decode against verify K={width}, all rejected"
    return Planned("verify", name, case, fed, ((0,),) * table.steps, rows, ((0, 0),))


def _wrong(table: Table, right: Sequence[int], at: int) -> int:
    """The token behind the right one; past the last that is known, behind that."""
    return (right[min(at, len(right) - 1)] + 1) % table.vocab_size


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
