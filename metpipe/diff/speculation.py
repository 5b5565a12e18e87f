"""What a verify step is given and what it accepts: drafts, accept counts and widths of a batch.

A verify of width K runs K rows of one sequence: the last committed token, then K - 1 drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["count_accepted", "draft_tokens", "unexercised_accepts", "verify_shapes"]


def draft_tokens(
    continuation: Sequence[int], committed: int, step: int, *, width: int, vocab_size: int
) -> tuple[int, ...]:
    """The K - 1 drafts of a step, from the sequence's own greedy continuation.

    `committed` is the position of the last committed token in the continuation; 0 stands for a
    draft past its end. At odd steps one draft is made wrong, each place in turn, so that whole and
    every partial accept occur. Odd steps alone would pass by every other place of an even number of
    drafts, so there every second odd step counts (diff.md 3.3 does not).
    Raises ValueError for a width without drafts.
    """
    if width < 2:
        raise ValueError(f"verify width {width}: one row is the committed token, drafts need more.")
    places = range(committed + 1, committed + width)
    drafts = [continuation[at] if at < len(continuation) else 0 for at in places]
    if step % 2:
        turn = step if width % 2 == 0 else step // 2
        wrong = turn % (width - 1)
        drafts[wrong] = (drafts[wrong] + 1) % vocab_size
    return tuple(drafts)


def count_accepted(tokens: Sequence[int], outputs: Sequence[int]) -> int:
    """Leading drafts that equal the argmax of the row before them.

    `tokens` are the K rows fed, `outputs` the argmax of each.
    """
    accepted = 0
    for draft, output in zip(tokens[1:], outputs, strict=False):
        if draft != output:
            break
        accepted += 1
    return accepted


def unexercised_accepts(
    accepted: Iterable[Sequence[int]], widths: Sequence[int], *, name: str
) -> str | None:
    """Why a verify proves too little, or None: both kinds of accept must occur.

    `accepted`: for each step, the count of each sequence; `widths`: the K of each sequence.
    """
    whole = [
        count == width - 1
        for counts in accepted
        for count, width in zip(counts, widths, strict=True)
    ]
    if any(whole) and not all(whole):
        return None
    return (
        f"{name}: {sum(whole)} of {len(whole)} verifies accepted every draft; "
        "needs both full and partial accepts."
    )


def verify_shapes(num_sequences: int, widths: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The widths of each sequence of a batch, for each batch to run.

    Each width for all sequences, the deepest first; then one mixed batch where there are at least
    two widths and a sequence for each, split evenly with the remainder to the deepest.
    """
    deepest_first = sorted(set(widths), reverse=True)
    uniform = [(width,) * num_sequences for width in deepest_first]
    if len(deepest_first) < 2 or num_sequences < len(deepest_first):
        return tuple(uniform)
    each, remainder = divmod(num_sequences, len(deepest_first))
    mixed = [w for i, w in enumerate(deepest_first) for _ in range(each + (i < remainder))]
    return (*uniform, tuple(mixed))
