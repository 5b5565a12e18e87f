"""The comparer's own test, run in every run, on the path that the run's comparisons take.

A comparer that misses one of these would make a PASS worthless; one that alarms on equal bytes
would make a FAIL worthless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from metpipe.diff.bytewise import NothingComparedError
from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison
from metpipe.diff.digest import HashRows, row_digests
from metpipe.diff.records import Check

__all__ = ["run_self_test"]

NUM_STEPS = 3
FLIPPED_STEP = 1
CARRIED_NAN = (0x7FC0, 0xFFC1, 0x7F81)  # quiet, negative with a payload, signalling
SIGN_BIT = 0x80
"""In the high byte of a bf16."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What the checks work on."""

    make: Callable[[str], Comparer]
    logits: torch.Tensor
    """bf16 [rows, V] on the device of the run."""
    hash_rows: HashRows | None

    def compare(self, runs: list[torch.Tensor]) -> Comparison:
        """A whole run: the prefill, then the steps; the reference is the same logits throughout."""
        comparer = self.make("self-test")
        comparer.prefill(self.logits, runs[0])
        for step, run in enumerate(runs[1:]):
            comparer.step(step, self.logits, run)
        return comparer.result()

    def compare_step(self, reference: torch.Tensor, run: torch.Tensor) -> Comparison:
        comparer = self.make("self-test")
        comparer.prefill(self.logits, self.logits.clone())
        comparer.step(0, reference, run)
        return comparer.result()

    def compare_digests(self, run: torch.Tensor) -> Comparison:
        comparer = self.make("self-test")
        ours = row_digests(self.logits, hash_rows=self.hash_rows)
        comparer.prefill_digest(ours, ours)
        comparer.step_digest(0, ours, row_digests(run, hash_rows=self.hash_rows))
        return comparer.result()

    def equal_runs(self) -> list[torch.Tensor]:
        return [self.logits.clone()] * (1 + NUM_STEPS)

    def flipped(self, offset: int, mask: int) -> torch.Tensor:
        run = self.logits.clone()
        run.view(-1).view(torch.uint8)[offset] ^= mask
        return run

    def offsets(self) -> tuple[int, ...]:
        """The first byte, one inside, one at the start of the last row, and the last byte."""
        total = self.logits.numel() * 2
        return (0, total // 2 + 1, total - total // len(self.logits), total - 1)


def run_self_test(
    make: Callable[[str], Comparer] = Comparer,
    *,
    num_rows: int = 3,
    vocab_size: int = 1000,
    device: str | torch.device = "cpu",
    hash_rows: HashRows | None = None,
) -> tuple[Check, ...]:
    """One record for each check; give the run's own vocabulary, device and hash.

    `make` makes the comparer under test. Raises ValueError for fewer than 2 rows or 8 ids.
    """
    if num_rows < 2 or vocab_size < 8:
        raise ValueError(f"self-test of {num_rows} rows, {vocab_size} ids: needs 2 rows, 8 ids.")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((num_rows, vocab_size), generator=generator).to(torch.bfloat16)
    bench = Bench(make, logits.to(device), hash_rows)
    return tuple(run_check(name, check, bench) for name, check in CHECKS.items())


Finding = str | None
"""What went wrong, or None."""


def run_check(name: str, check: Callable[[Bench], Finding], bench: Bench) -> Check:
    finding = check(bench)
    return Check(name, finding is None, finding or "as it must be")


def equal_copies_pass(bench: Bench) -> Finding:
    found = bench.compare(bench.equal_runs())
    return None if found else f"equal bytes were reported as different: {found.sentence}"


def flipped_bit_is_seen(bench: Bench) -> Finding:
    return next(
        (
            finding
            for offset in bench.offsets()
            for mask in (0x01, 0x80)
            if (finding := flip_in_step(bench, offset, mask)) is not None
        ),
        None,
    )


def flip_in_step(bench: Bench, offset: int, mask: int) -> Finding:
    runs = bench.equal_runs()
    runs[1 + FLIPPED_STEP] = bench.flipped(offset, mask)
    found = bench.compare(runs)
    row = offset // (2 * bench.logits.shape[1])
    seen = [(d.step, d.unequal_bytes, d.first_byte, d.rows) for d in found.differences]
    expected = [(FLIPPED_STEP, 1, offset, (row,))]
    if found.prefill_equal and seen == expected:
        return None
    return f"one bit was flipped: (step, bytes, first, rows) is {seen}, not {expected}"


def flipped_prefill_bit_is_seen(bench: Bench) -> Finding:
    for offset in bench.offsets():
        found = bench.compare([bench.flipped(offset, 0x01), *bench.equal_runs()[1:]])
        if found.prefill_first_diff != offset or found.mismatched_steps:
            return f"a bit of the prefill was flipped at byte {offset}: {found.sentence}"
    return None


def equal_nan_passes(bench: Bench) -> Finding:
    found = bench.compare_step(with_nan(bench, CARRIED_NAN), with_nan(bench, CARRIED_NAN))
    return None if found else "NaNs with equal bytes were reported as different"


def other_nan_is_seen(bench: Bench) -> Finding:
    run = with_nan(bench, (0x7FC0, 0xFFC2, 0x7F81))
    found = bench.compare_step(with_nan(bench, CARRIED_NAN), run)
    return "a NaN with another payload was not seen" if found else None


def with_nan(bench: Bench, bits: tuple[int, ...]) -> torch.Tensor:
    run = bench.logits.clone()
    signed = [value - 0x10000 if value >= 0x8000 else value for value in bits]
    run.view(torch.int16)[-1, : len(signed)] = torch.tensor(signed, device=run.device).short()
    return run


def zero_sign_is_seen(bench: Bench) -> Finding:
    positive = bench.logits.clone()
    positive[0, 5] = 0.0
    negative = positive.clone()
    negative.view(-1).view(torch.uint8)[11] ^= SIGN_BIT
    return "-0.0 against +0.0 was not seen" if bench.compare_step(positive, negative) else None


def other_dtype_is_seen(bench: Bench) -> Finding:
    for run in (bench.logits.float(), bench.logits.clone().view(torch.int16)):
        if bench.compare_step(bench.logits, run):
            return f"logits as {run.dtype} were reported as equal"
    return None


def other_shape_is_seen(bench: Bench) -> Finding:
    for run in (bench.logits.clone().view(-1), bench.logits[:-1].clone()):
        if bench.compare_step(bench.logits, run):
            return f"logits of shape {list(run.shape)} were reported as equal"
    return None


def swapped_rows_are_seen(bench: Bench) -> Finding:
    found = bench.compare_step(bench.logits, bench.logits.roll(1, dims=0))
    rows = found.differences[0].rows if found.differences else ()
    every = tuple(range(len(bench.logits)))
    return None if rows == every else f"rows were swapped: {rows} differ, not {every}"


def nothing_is_refused(bench: Bench) -> Finding:
    empty = bench.logits[:0]
    attempts: dict[str, Callable[[], object]] = {
        "no step": lambda: bench.compare(bench.equal_runs()[:1]),
        "two empty tensors": lambda: bench.compare_step(empty, empty.clone()),
        "one tensor with itself": lambda: bench.compare_step(bench.logits, bench.logits),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except NothingComparedError:
            continue
        return f"comparing {name} was accepted"
    return None


def digests_see_a_flipped_bit(bench: Bench) -> Finding:
    if not bench.compare_digests(bench.logits.clone()):
        return "digests of equal bytes differ"
    for offset in bench.offsets():
        found = bench.compare_digests(bench.flipped(offset, 0x01))
        row = offset // (2 * bench.logits.shape[1])
        if [d.rows for d in found.differences] != [(row,)]:
            return f"a bit was flipped at byte {offset}, and the digest of row {row} did not tell"
    return None


def digests_see_an_exchange(bench: Bench) -> Finding:
    run = bench.logits.clone()
    run[0, 0], run[0, 1] = bench.logits[0, 1], bench.logits[0, 0]
    return "two exchanged logits have one digest" if bench.compare_digests(run) else None


def other_ids_are_seen(bench: Bench) -> Finding:
    comparer = bench.make("self-test")
    comparer.prefill(bench.logits, bench.logits.clone())
    comparer.step(0, bench.logits, bench.logits.clone())
    equal = comparer.ids(0, (3, 4), (3, 4)) and bool(comparer.result())
    seen = not comparer.ids(0, (3, 4), (3, 5)) and not comparer.result()
    return None if equal and seen else "another id beside equal logits was not seen"


def other_states_are_seen(bench: Bench) -> Finding:
    """After a step, and at the end."""
    found = []
    for step, end in (("a", "a"), ("b", "a"), ("a", "b")):
        comparer = bench.make("self-test")
        comparer.prefill(bench.logits, bench.logits.clone())
        comparer.step(0, bench.logits, bench.logits.clone())
        comparer.step_states(0, ("a", "a"), ("a", step))
        comparer.state({"l0.k": "a"}, {"l0.k": end})
        found.append(bool(comparer.result()))
    expected = [True, False, False]
    return None if found == expected else f"equal, other after a step, other at the end: {found}"


CHECKS: dict[str, Callable[[Bench], Finding]] = {
    check.__name__.replace("_", " "): check
    for check in (
        equal_copies_pass,
        flipped_bit_is_seen,
        flipped_prefill_bit_is_seen,
        equal_nan_passes,
        other_nan_is_seen,
        zero_sign_is_seen,
        other_dtype_is_seen,
        other_shape_is_seen,
        swapped_rows_are_seen,
        nothing_is_refused,
        digests_see_a_flipped_bit,
        digests_see_an_exchange,
        other_ids_are_seen,
        other_states_are_seen,
    )
}
