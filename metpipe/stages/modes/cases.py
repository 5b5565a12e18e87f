"""The cases of a mode: a pure function of the run and of what the model has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from metpipe.config import Run
from metpipe.diff.prompts import batch_prompts, prompt_of_len
from metpipe.diff.prompts import prompts as single_prompts
from metpipe.diff.speculation import verify_shapes
from metpipe.stages.modes.capacity import MAX_SPECULATING, Capacity
from metpipe.stages.modes.case import Case, slots_of

__all__ = ["PLAIN", "Facts", "cases_of"]

PLAIN = "plain decode"
"""The case that a speculative one is timed against."""
PREFILL_STEPS = 2
"""Decode steps behind a prefill: what it left behind must be of use."""
SHORTEST_RESTORE = 256
"""The shortest prompt whose restored prefix is tried (diff.md 3.6)."""
SWAPPED_ROWS = 2
"""Rows K of the verifies around a spill: the draft head's cache must be in the record too."""
TAIL = 37
"""Tokens behind a restored prefix."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the cases need to know beside the run."""

    prompts: tuple[tuple[int, ...], ...]
    """of plain decoding"""
    vocab_size: int
    drafts: bool
    """whether the draft head runs in the verify modes"""


def cases_of(mode: str, run: Run, facts: Facts) -> tuple[Case, ...]:
    """Every case of a mode, in the order in which they run."""
    return tuple(CASES[mode](run, facts))


def _single(run: Run, facts: Facts) -> Iterator[Case]:
    for index, prompt in enumerate(facts.prompts):
        yield Case("single", f"prompt {index}", (prompt,), run.steps)


def _batch(run: Run, facts: Facts) -> Iterator[Case]:
    for width in run.batch or ():
        prompts = _of_batch(width, facts.vocab_size)
        for fragmented in _layouts(run):
            name = f"width {width}" + (", fragmented" if fragmented else "")
            yield Case("batch", name, prompts, run.steps, fragmented=fragmented)


def _verify(run: Run, facts: Facts) -> Iterator[Case]:
    prompt = facts.prompts[0]
    if facts.drafts:
        yield Case("verify", PLAIN, (prompt,), run.steps)
    for width in run.verify or ():
        case = Case("verify", f"K={width}", (prompt,), run.steps, widths=(width,))
        yield case
        if facts.drafts:
            yield _with_head(case, width)


def _verify_batch(run: Run, facts: Facts) -> Iterator[Case]:
    if run.verify_batch is None or run.verify_batch_ks is None:
        return
    for count in run.verify_batch:
        for fragmented in _layouts(run):
            for widths in _shapes(run, slots_of(count, fragmented=fragmented)):
                yield Case(
                    "verify_batch",
                    f"K={_of_each(widths)}" + (", fragmented" if fragmented else ""),
                    _of_batch(count, facts.vocab_size),
                    run.steps,
                    widths=widths,
                    num_drafts=max(run.verify_batch_ks) - 1 if facts.drafts else 0,
                    fragmented=fragmented,
                )


def _shapes(run: Run, slots: Sequence[int]) -> list[tuple[int, ...]]:
    """The widths of each sequence, for each batch; none deeper than its slot allows."""
    shapes = verify_shapes(len(slots), run.verify_batch_ks or ())
    if run.ragged is False:
        shapes = tuple(shape for shape in shapes if len(set(shape)) == 1)
    flags = run.serve
    assert flags.num_drafts is not None, "a list of Ks sets it"
    capacity = Capacity(flags.num_drafts, flags.mtp_max_seqs or MAX_SPECULATING)
    return _without_repeats([capacity.capped(shape, slots) for shape in shapes])


def _of_each(widths: Sequence[int]) -> str:
    """`4 4 2`, or how many there are of each where that would be long."""
    if len(widths) <= 8:
        return " ".join(map(str, widths))
    return f"{len(widths)} sequences, {_runs(widths)}"


def _prefill(run: Run, facts: Facts) -> Iterator[Case]:
    for length in run.prefill or ():
        prompt = tuple(prompt_of_len(length, facts.vocab_size))
        tokens = "1 token" if length == 1 else f"{length} tokens"
        for chunk in _passes(run, length):
            path = "" if chunk is None else f" in chunks of {chunk}"
            yield Case("prefill", f"{tokens}{path}", (prompt,), PREFILL_STEPS, chunk=chunk)
        if length >= SHORTEST_RESTORE:
            tail = tuple(prompt_of_len(TAIL, facts.vocab_size))
            name = f"{tokens} restored, {TAIL} computed"
            yield Case("prefill", name, (prompt + tail,), PREFILL_STEPS, restored=length)


def _passes(run: Run, length: int) -> list[int | None]:
    """Tokens of a pass, each way: None is all at once, which only the budget's tokens can be."""
    budget = run.serve.max_prefill_tokens
    whole = None if length <= budget else budget
    shorter = [chunk for chunk in run.prefill_chunk or () if chunk < length]
    return list(dict.fromkeys((whole, *shorter)))


def _swap(run: Run, facts: Facts) -> Iterator[Case]:
    prompt, half = tuple(single_prompts(1, facts.vocab_size)[0]), run.steps // 2
    for crossing in (False, True):
        name = "the reference's record" if crossing else "own record"
        case = Case("swap", name, (prompt,), run.steps, spill=half, crossing=crossing)
        yield case
        if facts.drafts:
            yield _with_head(case, SWAPPED_ROWS)


def _with_head(case: Case, width: int) -> Case:
    """The case with verifies of `width` rows, whose drafts are the model's own."""
    return replace(
        case,
        name=f"{case.name}, draft head",
        widths=(width,),
        num_drafts=width - 1,
        drafts_verified=True,
    )


def _layouts(run: Run) -> tuple[bool, ...]:
    """Whether the slots have a gap; with every mode, both."""
    return (False, True) if run.diff.mode == "all" else (run.fragment_slots,)


def _of_batch(width: int, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(prompt) for prompt in batch_prompts(width, vocab_size))


def _without_repeats(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Capping may make neighbours equal."""
    return [*shapes[:1], *(b for a, b in pairwise(shapes) if a != b)]


def _runs(widths: Sequence[int]) -> str:
    """`4x8 2x8`: runs of equal widths."""
    found: list[list[int]] = []
    for width in widths:
        if found and found[-1][0] == width:
            found[-1][1] += 1
        else:
            found.append([width, 1])
    return " ".join(f"{width}x{count}" for width, count in found)


CASES: Mapping[str, Callable[[Run, Facts], Iterator[Case]]] = {
    "single": _single,
    "batch": _batch,
    "verify": _verify,
    "verify_batch": _verify_batch,
    "prefill": _prefill,
    "swap": _swap,
}
