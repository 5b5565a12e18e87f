"""Every seeded fault of logits is seen, by bytes and by digests; the two faultless rows pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison
from metpipe.diff.digest import logits_digest

NUM_STEPS, VOCAB_SIZE = 16, 2048
Fault = Callable[[torch.Tensor], None]


def one_ulp(logits: torch.Tensor) -> None:
    bits = logits.view(torch.int32 if logits.dtype == torch.float32 else torch.int16)
    bits[5, 100] += 1


def zero_sign(logits: torch.Tensor) -> None:
    logits[5, 100] = -0.0


def rows_swapped(logits: torch.Tensor) -> None:
    logits[[5, 9]] = logits[[9, 5]]


def logits_swapped(logits: torch.Tensor) -> None:
    logits[5, [100, 200]] = logits[5, [200, 100]]


def sign(logits: torch.Tensor) -> None:
    logits[5, 101] = -logits[5, 101]


def shifted_one_lane(logits: torch.Tensor) -> None:
    logits[5] = logits[5].roll(1)


def lowest_plus_one(logits: torch.Tensor) -> None:
    logits[5, logits[5].argmin()] += 1.0


def stale_last_row(logits: torch.Tensor) -> None:
    logits[-1] = logits[-2]


def half_round_trip(logits: torch.Tensor) -> None:
    # Half precision holds every bf16 of this range, so there e4m3 stands for it.
    narrow = torch.float16 if logits.dtype == torch.float32 else torch.float8_e4m3fn
    logits.copy_(logits.to(narrow))


def nothing(logits: torch.Tensor) -> None:
    pass


def compared(reference: torch.Tensor, run: torch.Tensor) -> Comparison:
    comparer = Comparer("faulty", expected_steps=NUM_STEPS)
    comparer.prefill(reference[0], reference[0].clone())
    for step in range(NUM_STEPS):
        comparer.step(step, reference[step], run[step])
    return comparer.result()


def compared_by_digest(reference: torch.Tensor, run: torch.Tensor) -> Comparison:
    comparer = Comparer("faulty", expected_steps=NUM_STEPS)
    comparer.prefill_digest("same", "same")
    for step in range(NUM_STEPS):
        comparer.step_digest(step, logits_digest(reference[step]), logits_digest(run[step]))
    return comparer.result()


def make_logits(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn((NUM_STEPS, VOCAB_SIZE), generator=generator) * 4).to(dtype)
    logits[5, 100] = 0.0
    logits[7, 3] = float("nan")
    return logits


@pytest.mark.parametrize("compare", [compared, compared_by_digest])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (one_ulp, [5]),
        (zero_sign, [5]),
        (rows_swapped, [5, 9]),
        (logits_swapped, [5]),
        (sign, [5]),
        (shifted_one_lane, [5]),
        (lowest_plus_one, [5]),
        (stale_last_row, [15]),
        (half_round_trip, list(range(NUM_STEPS))),
        (nothing, []),
    ],
)
def test_seeded_fault_is_seen_where_it_is(
    compare: Callable[[torch.Tensor, torch.Tensor], Comparison],
    dtype: torch.dtype,
    fault: Fault,
    steps: list[int],
) -> None:
    reference = make_logits(dtype)
    run = reference.clone()
    fault(run)
    found = compare(reference, run)
    assert [d.step for d in found.differences] == steps
    assert bool(found) == (not steps)


def test_same_nan_bytes_on_both_sides_are_no_fault() -> None:
    reference = torch.full((NUM_STEPS, VOCAB_SIZE), float("nan"), dtype=torch.bfloat16)
    assert compared(reference, reference.clone())
    assert compared_by_digest(reference, reference.clone())


def test_one_row_alone_differs_from_the_same_row_in_a_batch() -> None:
    """A matrix product by another kernel at M=1 than at M=16: the width axis without a GPU."""
    generator = torch.Generator().manual_seed(3)
    rows_MK = torch.randn((16, 512), generator=generator)
    weight_KN = torch.randn((512, 512), generator=generator)
    together, again = (rows_MK @ weight_KN for _ in range(2))
    alone = torch.cat([rows_MK[i : i + 1] @ weight_KN for i in range(16)])
    assert bool(compared(together, again))
    if torch.equal(together, alone):
        pytest.skip("this build's BLAS gives a row the same bits alone and in a batch")
    assert not compared(together, alone)
