"""The legs of the axis `draft`: the draft head's rows behind the same committed tokens.

What the head gives hangs on its cache too, so that two ways are held against each other only where
both leave the same tokens in it: all of them, or none where every draft is taken back at once. The
second draft's logits also say which token the first one was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Point
from metpipe.stages.invariance.table import MODE, Planned, Table, Tokens, all_steps
from metpipe.stages.modes.capacity import MAX_SPECULATING
from metpipe.stages.modes.case import Case

__all__ = ["draft_bases", "draft_changed", "drafts"]

COMMITTED = 6
"""Tokens behind the bootstrap: whole verifies of two rows, and of three."""
SOME = 5
"""Sequences of the batch between the narrowest and the widest."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to the drafts behind some prompts' tokens."""

    name: str
    width: int
    """rows K of each sequence's verify"""
    accepts: bool
    """whether every draft is right, or every one wrong"""
    drafts: int
    """of each proposal"""
    prompts: tuple[int, ...] = (0,)
    keeps: bool = True
    """whether the head's cache keeps what was accepted, or nothing"""

    @property
    def per_step(self) -> int:
        """Tokens of each sequence that a step commits."""
        return self.width if self.accepts else 1

    @property
    def steps(self) -> int:
        """Verifies until all is committed."""
        return COMMITTED // self.per_step

    def case(self, table: Table) -> Case:
        """The case, under whose name others look its rows up."""
        return Case(
            MODE,
            f"drafts, {self.name}",
            tuple(table.prompts[index] for index in self.prompts),
            self.steps,
            widths=(self.width,) * len(self.prompts),
            num_drafts=self.drafts,
            drafts_verified=self.keeps,
        )

    def row(self, step: int, draft: int, sequence: int) -> int:
        """Where a draft lies: behind the prompts' and the bootstrap's rows, or the verify's."""
        count = len(self.prompts)
        before = 2 * count if step == PREFILL else self.width * count
        return before + draft * count + sequence

    def step_behind(self, committed: int) -> int | None:
        """The step whose drafts come behind so many committed tokens; None: no step's do."""
        steps, rest = divmod(committed, self.per_step)
        return None if rest else steps - 1


REJECTED = _Way("K=2, all rejected", 2, accepts=False, drafts=1)
"""Every committed token's draft, one behind another: there is nothing to trim."""
FRESH = _Way("K=2, all rejected, none kept", 2, accepts=False, drafts=2, keeps=False)
"""The same, each from an empty cache."""
ACCEPTED = tuple(
    _Way(f"K=2, all accepted, prompt {index}", 2, accepts=True, drafts=2, prompts=(index,))
    for index in (0, 1)
)
"""As many drafts as are kept, so that there is nothing to trim."""


def draft_bases(table: Table, tokens: Tokens) -> tuple[Planned, ...]:
    """What the legs are held against, each of one sequence alone."""
    return tuple(_planned(table, tokens, way) for way in (FRESH, REJECTED, *ACCEPTED))


def draft_changed(table: Table, tokens: Tokens) -> Planned:
    """A detection control: one of the tokens that drafts come behind is another."""
    seen = COMMITTED // 2
    leg = _held(table, tokens, "a token that a draft comes behind changed", REJECTED, (REJECTED, 0))
    fed = list(leg.fed)
    token, *wrong = fed[seen + 1]
    fed[seen + 1] = ((token + 1) % table.vocab_size, *wrong)
    case = replace(leg.case, name=f"{leg.case.name}, changed")
    return replace(leg, case=case, fed=tuple(fed), ends=(), changed_step=seen)


def drafts(table: Table, tokens: Tokens) -> Iterator[Planned]:
    """Behind accepted verifies, behind drafts that must be trimmed, and among other sequences."""
    for width in (2, 3):
        way = _Way(f"K={width}, all accepted, none kept", width, True, 2, keeps=False)
        name = f"drafts behind rejecting verifies against accepting ones of K={width}"
        yield _held(table, tokens, name, way, (FRESH, 0))
    for width in (2, 3):
        way = _Way(f"K={width}, all rejected, {width} drafts", width, False, width)
        name = f"the only draft against the first of {width}, K={width}, all rejected"
        yield _held(table, tokens, name, way, (REJECTED, 0))
    way = _Way("K=2, all accepted, 3 drafts", 2, accepts=True, drafts=3)
    name = "two drafts against two of three, K=2, all accepted"
    yield _held(table, tokens, name, way, (ACCEPTED[0], 0))
    widest = min(table.limit, MAX_SPECULATING)
    for count in sorted({2, min(SOME, widest), widest}):
        prompts = (1, *range(2, count), 0)
        way = _Way(f"{count} sequences", 2, True, 2, prompts)
        name = f"drafts of one sequence alone against those among {count}"
        leg = _held(table, tokens, name, way, (ACCEPTED[1], 0), (ACCEPTED[0], count - 1))
        yield replace(leg, again=count == widest)


def _held(
    table: Table, tokens: Tokens, name: str, way: _Way, *against: tuple[_Way, int]
) -> Planned:
    """A leg whose sequence of that number has the rows of each base.

    Its cache at the end is the base's too, where both proposed as many drafts.
    """
    rows, ends = [], []
    for base, sequence in against:
        key = base.case(table).name
        rows += [(key, point) for point in _points(base, way, sequence)]
        if base.drafts == way.drafts:
            ends.append((key, 0, sequence))
    leg = _planned(table, tokens, way)
    return replace(leg, name=name, rows=tuple(rows), ends=tuple(ends))


def _points(base: _Way, way: _Way, sequence: int) -> Iterator[Point]:
    """Every draft that both give behind the same committed tokens."""
    for step in all_steps(way.steps):
        ours = base.step_behind((step + 1) * way.per_step)
        for draft in range(min(base.drafts, way.drafts) if ours is not None else 0):
            assert ours is not None
            yield Point((ours, base.row(ours, draft, 0)), (step, way.row(step, draft, sequence)))


def _planned(table: Table, tokens: Tokens, way: _Way) -> Planned:
    """What a way is fed: the bootstrap, then each step's rows."""

    def at(place: int) -> tuple[int, ...]:
        return tuple(_token(table, tokens, prompt, place) for prompt in way.prompts)

    return Planned(
        f"drafts, {way.name}",
        way.case(table),
        tuple(_fed(table, tokens, way, 1 + step * way.per_step) for step in range(way.steps)),
        ((way.width - 1 if way.accepts else 0,) * len(way.prompts),) * way.steps,
        drafted=(*at(0), *at(1)),
        following=at(1 + COMMITTED),
    )


def _fed(table: Table, tokens: Tokens, way: _Way, first: int) -> tuple[int, ...]:
    """The rows of a step, sequence by sequence: a committed token, its drafts right or wrong."""
    off = 0 if way.accepts else 1
    return tuple(
        (_token(table, tokens, prompt, first + row) + (off if row else 0)) % table.vocab_size
        for prompt in way.prompts
        for row in range(way.width)
    )


def _token(table: Table, tokens: Tokens, prompt: int, place: int) -> int:
    """A token behind the prompt; past the last that is known, the ids behind that."""
    known = tokens[prompt]
    beyond = max(place - (len(known) - 1), 0)
    return (known[place - beyond] + beyond) % table.vocab_size
