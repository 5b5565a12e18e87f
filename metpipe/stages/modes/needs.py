"""How large the pools must be for the cases of a run, and whether they may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from metpipe.circuit import RuleSet, padded_rows
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.serve_flags import ExecutedServe
from metpipe.errors import ConfigError
from metpipe.nouns import number_of
from metpipe.stages.modes.case import Case

__all__ = ["check_fits", "check_passes", "check_rows", "check_widths", "one_sequence", "sizes_for"]

GUARD = 1
"""Slots and blocks that no case of a run is handed."""
FEWEST_ROWS = {"batch": ("multi_seq", 1), "verify_batch": ("verify_batch", 2)}
"""Key of widths -> the mode of its steps, and the fewest rows that a sequence has in one."""


def sizes_for(cases: Sequence[Case], serve: ExecutedServe, slots: int | None) -> PoolSizes:
    """Pools and step buffers for every case; `slots` beyond what they need are all allocated.

    A slot and a block more than the widest case takes are nobody's: what is written behind a
    case's own must be somebody's to be seen. Given slots are what they are.
    """
    needed = max(_slots(case) for case in cases) + GUARD
    blocks = max(_blocks(case, serve.block_size) for case in cases) + GUARD
    num_slots = needed if slots is None else slots
    longest = max(max(case.reserved) for case in cases)
    spread = num_slots * -(-longest // serve.block_size)
    prefill_rows = min(serve.max_prefill_tokens, max(_prompt_tokens(case) for case in cases))
    return PoolSizes(
        num_blocks=max(blocks, spread if slots is not None else 0) + 1,
        num_slots=num_slots,
        block_size=serve.block_size,
        max_seq_len=serve.max_seq_len,
        max_prefill_rows=prefill_rows,
        runs=tuple(sorted({**_widest(cases), "prefill": prefill_rows}.items())),
        snapshot_rows=max(sum(width - 1 for width in case.widths) for case in cases),
    )


def one_sequence(tokens: int, serve: ExecutedServe) -> PoolSizes:
    """Pools that hold one sequence of so many tokens, and its prefill."""
    rows = min(serve.max_prefill_tokens, tokens)
    return PoolSizes(
        num_blocks=-(-tokens // serve.block_size) + 1,
        num_slots=1,
        block_size=serve.block_size,
        max_seq_len=serve.max_seq_len,
        max_prefill_rows=rows,
        runs=(("decode", 1), ("prefill", rows)),
        snapshot_rows=0,
    )


def check_widths(widths: Mapping[str, Sequence[int]], rules: RuleSet) -> None:
    """Refuse a batch that no rule takes the rows of, before its prompts are made.

    `widths`: key -> sequences of its batches.

    Raises:
        ConfigError: naming the key, and the most sequences that a step takes.
    """
    for key, found in widths.items():
        mode, rows = FEWEST_ROWS[key]
        most = rules.widest(mode) // rows
        if max(found, default=0) > most:
            raise ConfigError(
                f"{key}: {max(found):,} sequences are {max(found) * rows:,} rows or more a step, "
                f"and the kernel set's rules take at most {most * rows:,}: up to "
                f"{number_of(most, 'sequence')}"
            )


def check_rows(cases: Sequence[Case], max_prefill_rows: int, rules: RuleSet) -> None:
    """Refuse a step wider than every rule, which would end as nodes that no rule takes.

    Raises:
        ConfigError: naming the case, or the flag that bounds a prefill.
    """
    widest = rules.widest("prefill")
    if max_prefill_rows > widest:
        raise ConfigError(
            f"serve.max_prefill_tokens: a prompt is prefilled in a pass of {max_prefill_rows:,} "
            f"rows, and the kernel set's rules take at most {widest:,}; set "
            f"serve.max_prefill_tokens={widest}, and it is prefilled in more passes"
        )
    for case in cases:
        for mode, rows in _steps(case):
            if rows > rules.widest(mode):
                raise ConfigError(
                    f"{case.mode}: {case.name} has steps of {rows:,} rows, and the kernel set's "
                    f"rules take at most {rules.widest(mode):,}; give fewer sequences or smaller Ks"
                )


def check_passes(cases: Sequence[Case], max_prefill_tokens: int) -> None:
    """Refuse a chunk that the engine would split, since its name would be wrong.

    Raises:
        ConfigError: naming the case and the flag.
    """
    one_pass = [(_one_pass(case), case) for case in cases]
    passes, case = max(one_pass, key=lambda found: found[0])
    if passes > max_prefill_tokens:
        raise ConfigError(
            f"serve.max_prefill_tokens={max_prefill_tokens}: {case.full_name} prefills "
            f"{number_of(passes, 'token')} in one pass; raise it to {passes}"
        )


def _one_pass(case: Case) -> int:
    """Tokens that the case's name says are prefilled in one pass; 0 where it says nothing."""
    if case.chunk is not None:
        return case.chunk
    return max(map(len, case.prompts)) if case.mode == "invariance" else 0


def check_fits(cases: Sequence[Case], max_seq_len: int, slots: int | None) -> None:
    """Refuse a pool or a length that some case goes beyond.

    Raises:
        ConfigError: naming the case, what it needs and what would fit.
    """
    longest = max(cases, key=lambda case: max(case.reserved))
    tokens = max(longest.reserved)
    if tokens > max_seq_len:
        raise ConfigError(
            f"serve.max_seq_len={max_seq_len}: {longest.full_name} holds {tokens} tokens with "
            f"its {longest.steps} steps; raise it to {tokens}, or lower steps or lengths"
        )
    widest = max(cases, key=_slots)
    needed = _slots(widest)
    if slots is not None and needed > slots:
        raise ConfigError(
            f"slots={slots}: {widest.full_name} needs {number_of(needed, 'state slot')}; set "
            f"slots={needed} or leave slots out; {_fitting(widest, slots)}"
        )


def _fitting(case: Case, slots: int) -> str:
    """What this pool would hold."""
    held = slots - (_slots(case) - case.num_sequences)
    verb = "holds" if slots == 1 else "hold"
    what = "no such case at all" if held < 1 else number_of(held, "sequence")
    return f"{number_of(slots, 'slot')} {verb} {what}"


def _slots(case: Case) -> int:
    """A spare in the middle, the place that a sequence is restored to, or that a prefix ran in."""
    beside = int(case.fragmented or case.spill is not None or case.restored > 0)
    return case.num_sequences + case.held + beside


def _blocks(case: Case, block_size: int) -> int:
    held = sum(-(-tokens // block_size) for tokens in case.reserved)
    if case.spill is not None:
        return 2 * held
    beside = -(-case.restored // block_size) + int(case.fragmented) + case.held
    return max(held + beside, -(-len(case.tenant) // block_size))


def _prompt_tokens(case: Case) -> int:
    longest = max(map(len, (*case.prompts, case.tenant)))
    return longest if case.chunk is None else min(longest, case.chunk)


def _widest(cases: Sequence[Case]) -> dict[str, int]:
    """Mode of a step -> its most rows over the cases; one-row decode always is one."""
    found = {"decode": 1}
    for case in cases:
        for mode, rows in _steps(case):
            found[mode] = max(rows, found.get(mode, 0))
    return found


def _steps(case: Case) -> Iterator[tuple[str, int]]:
    """Every kind of step that a case runs beside its prefill."""
    count = case.num_sequences
    if count > 1:
        yield "multi_seq", padded_rows(count) if case.padded else count
    if case.widths:
        yield "verify" if count == 1 else "verify_batch", sum(case.widths)
    if case.num_drafts:
        yield "draft", padded_rows(count)
