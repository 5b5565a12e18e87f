"""How large the pools must be for the cases of a run, and whether they may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metpipe.circuit import padded_rows
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.serve_flags import ExecutedServe
from metpipe.errors import ConfigError
from metpipe.stages.modes.case import Case

__all__ = ["check_fits", "sizes_for"]


def sizes_for(cases: Sequence[Case], serve: ExecutedServe, slots: int | None) -> PoolSizes:
    """Pools and step buffers for every case; `slots` beyond what they need are all allocated."""
    needed = max(_slots(case) for case in cases)
    blocks = max(_blocks(case, serve.block_size) for case in cases)
    num_slots = slots or needed
    longest = max(max(case.reserved) for case in cases)
    spread = num_slots * -(-longest // serve.block_size)
    prefill_rows = min(serve.max_prefill_tokens, max(_prompt_tokens(case) for case in cases))
    return PoolSizes(
        num_blocks=max(blocks, spread if slots else 0) + 1,
        num_slots=num_slots,
        block_size=serve.block_size,
        max_seq_len=serve.max_seq_len,
        max_prefill_rows=prefill_rows,
        runs=tuple(sorted({**_widest(cases), "prefill": prefill_rows}.items())),
        snapshot_rows=max(sum(width - 1 for width in case.widths) for case in cases),
    )


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
    if slots is not None and _slots(widest) > slots:
        raise ConfigError(
            f"slots={slots}: {widest.full_name} needs {_slots(widest)} state slots; set "
            f"slots={_slots(widest)} or leave slots out; {_fitting(widest, slots)}"
        )


def _fitting(case: Case, slots: int) -> str:
    """What this pool would hold."""
    spare = _slots(case) - case.num_sequences
    if slots - spare < 1:
        return f"{slots} hold no such case at all"
    return f"{slots} hold {slots - spare} sequences"


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
