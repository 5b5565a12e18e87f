"""The legs of the invariance table as data: which cases run, and which rows must be the same.

Most legs are held against `alone`: the prompt prefilled whole and decoded row by row in slot 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from metpipe.diff.feeding import change_token
from metpipe.diff.invariance import Point
from metpipe.engine.promises import OF_A_HEAD, TRIED
from metpipe.stages.invariance.drafts import draft_bases, draft_changed, drafts
from metpipe.stages.invariance.table import (
    MODE,
    Planned,
    Table,
    Tokens,
    all_steps,
    alone,
    point_at,
)
from metpipe.stages.invariance.verifies import verifies
from metpipe.stages.invariance.widths import is_rung, widths_up_to
from metpipe.stages.modes.case import Case

__all__ = ["MAKERS", "bases", "controls", "legs", "needed_cases"]

CHUNKS = (1, 16, 37, 64)
FRAGMENTED = 5
RESTORED = 64
"""Tokens of the chunked prompt that are restored from a record, in one leg."""

Rows = tuple[tuple[str, Point], ...]


def bases(table: Table, tokens: Tokens) -> tuple[Planned, ...]:
    """What legs are held against beside the prompts alone; these have no cell of their own."""
    return draft_bases(table, tokens) if table.drafts else ()


def controls(table: Table, tokens: Tokens) -> tuple[Planned, ...]:
    """A changed token of the first prompt alone, and one that a draft comes behind."""
    at = table.changed_step
    fed = change_token(tokens[0], at, table.vocab_size)
    case = replace(alone(table, 0), name="alone 0, changed")
    plain = replace(_one(table, "a token changed", case, fed, ends=()), changed_step=at)
    return (plain, draft_changed(table, tokens)) if table.drafts else (plain,)


def legs(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """Every leg of the table; one that is held against another leg right behind that one."""
    made = [
        replace(leg, axis=axis)
        for axis in TRIED
        if table.drafts or axis not in OF_A_HEAD
        for leg in MAKERS[axis](table, tokens)
    ]
    names = {leg.case.name for leg in made}
    for leg in made:
        if leg.against.isdisjoint(names):
            yield leg
            yield from (other for other in made if leg.case.name in other.against)


def needed_cases(table: Table) -> tuple[Case, ...]:
    """Every case that the table runs, for the sizes of the pools."""
    first = tuple(alone(table, index) for index in range(table.num_alone))
    tokens = [(0,) * case.steps for case in first]
    planned = (*bases(table, tokens), *controls(table, tokens), *legs(table, tokens))
    return first + tuple(leg.case for leg in planned)


def _one(
    table: Table,
    name: str,
    case: Case,
    tokens: Sequence[int],
    *,
    index: int = 0,
    ends: tuple[tuple[int, int], ...] = ((0, 0),),
) -> Planned:
    """A prompt alone on another way: each of its rows, and its states at the end."""
    key = alone(table, index).name
    fed = tuple((token,) for token in tokens)
    rows = tuple((key, point_at(step, 0, 0)) for step in all_steps(table.steps))
    return Planned(name, case, fed, rows=rows, ends=tuple((key, *end) for end in ends))


def _batch(table: Table, tokens: Tokens, name: str, case: Case) -> Planned:
    """The first prompts side by side, each row against its prompt alone."""
    prompts = range(case.num_sequences)
    keys = [alone(table, prompt).name for prompt in prompts]
    rows = tuple(
        (keys[prompt], point_at(step, 0, prompt))
        for step in all_steps(table.steps)
        for prompt in prompts
    )
    ends = tuple((keys[prompt], 0, prompt) for prompt in prompts)
    return Planned(name, case, _side_by_side(tokens, case), rows=rows, ends=ends)


def _side_by_side(tokens: Tokens, case: Case) -> tuple[tuple[int, ...], ...]:
    """The first prompts' tokens, step by step."""
    return tuple(zip(*(tokens[prompt] for prompt in range(case.num_sequences)), strict=True))


def _width(table: Table, width: int) -> Case:
    return Case(MODE, f"width {width}", table.prompts[:width], table.steps)


def _widths(table: Table, tokens: Tokens) -> Iterator[Planned]:
    widths = widths_up_to(table.limit)
    for width in widths:
        name = f"alone against width {width}"
        leg = _batch(table, tokens, name, _width(table, width))
        yield replace(leg, again=width == widths[-1])


def _paddings(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """Against the padded batch of the same width; a rung has no padding that could be left out."""
    for width in widths_up_to(table.limit):
        if is_rung(width):
            continue
        padded = _width(table, width)
        case = replace(padded, name=f"exact {width}", padded=False)
        rows = tuple(
            (padded.name, point_at(step, row, row))
            for step in all_steps(table.steps)
            for row in range(width)
        )
        yield Planned(
            f"padded against exactly {width} rows",
            case,
            _side_by_side(tokens, case),
            rows=rows,
            ends=tuple((padded.name, row, row) for row in range(width)),
        )


def _slots(table: Table, tokens: Tokens) -> Iterator[Planned]:
    prompt = table.prompts[:1]
    last = Case(MODE, "last slot", prompt, table.steps, held=table.limit - 1)
    yield _one(table, f"slot 0 against slot {table.limit - 1}", last, tokens[0])
    reused = Case(MODE, "reused slot", prompt, table.steps, tenant=table.tenant)
    name = f"a fresh slot against one that {len(table.tenant)} tokens were in"
    yield _one(table, name, reused, tokens[0])
    width = min(FRAGMENTED, table.limit)
    gap = Case(MODE, "fragmented", table.prompts[:width], table.steps, fragmented=True)
    name = f"slot 0 against {width} fragmented slots and scattered blocks"
    yield _batch(table, tokens, name, gap)
    moved = Case(MODE, "spilled", prompt, table.steps, spill=table.steps // 2)
    yield _one(table, "one slot against another that it was spilled to", moved, tokens[0])


def _neighbours(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """All rows but one get other prompts and other tokens."""
    for width in sorted({2, min(FRAGMENTED, table.limit), table.limit}):
        kept = width // 2
        prompts = tuple(table.prompts[i] if i == kept else table.others[i] for i in range(width))
        case = Case(MODE, f"neighbours of {kept} of {width}", prompts, table.steps)
        fed = tuple(
            tuple(tokens[i][step] if i == kept else tokens[i][0] for i in range(width))
            for step in range(table.steps)
        )
        key = alone(table, kept).name
        rows = tuple((key, point_at(step, 0, kept)) for step in all_steps(table.steps))
        name = f"row {kept} of {width} beside other neighbours"
        yield Planned(name, case, fed, rows=rows, ends=((key, 0, kept),))


def _chunks(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """In passes of other lengths, and behind a prefix that was restored, not computed."""
    index, prompt = len(table.prompts), table.chunked
    for chunk in CHUNKS:
        case = Case(MODE, f"chunks of {chunk}", (prompt,), table.steps, chunk=chunk)
        name = f"{len(prompt)} tokens prefilled at once against chunks of {chunk}"
        yield _one(table, name, case, tokens[index], index=index)
    case = Case(MODE, f"restored {RESTORED}", (prompt,), table.steps, restored=RESTORED)
    name = f"{len(prompt)} tokens prefilled at once against {RESTORED} of them restored"
    yield _one(table, name, case, tokens[index], index=index)


def _decoded(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """The prompt's tokens one by one: the last of them has the prefill's row, then they go on."""
    index, prompt = len(table.prompts), table.chunked
    key = alone(table, index).name
    forced = (*prompt[1:], *tokens[index])
    case = Case(MODE, "decoded prompt", (prompt[:1],), len(forced))
    last = len(prompt) - 2  # the step that feeds the prompt's last token
    rows = tuple((key, Point((step, 0), (last + 1 + step, 0))) for step in all_steps(table.steps))
    fed = tuple((token,) for token in forced)
    name = f"{len(prompt)} tokens prefilled against decoded"
    yield Planned(name, case, fed, rows=rows, ends=((key, 0, 0),))


MAKERS: Mapping[str, Callable[[Table, Tokens], Iterator[Planned]]] = {
    "width": _widths,
    "padding": _paddings,
    "slot": _slots,
    "neighbours": _neighbours,
    "verify": verifies,
    "prefill_chunks": _chunks,
    "prefill_decode": _decoded,
    "draft": drafts,
}
"""Axis -> its legs, for every axis of `TRIED`: one that had none would stop the table."""
