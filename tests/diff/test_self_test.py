"""A sound comparer passes its own test; each kind of broken comparer is caught by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch

from metpipe.diff import bytewise, comparer
from metpipe.diff.bytewise import Buffer, ByteComparison, as_tensor, compare_bytes
from metpipe.diff.comparer import Comparer, Digests
from metpipe.diff.digest import HashRows
from metpipe.diff.self_test import run_self_test

SAME = ByteComparison(0, None, (), 1, None)


def failed(make: Callable[[str], Comparer] = Comparer, **options: object) -> set[str]:
    checks = run_self_test(make, **options)  # type: ignore[arg-type]
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize("vocab_size", [8, 1001, 5000])
def test_the_comparer_passes_its_own_test(vocab_size: int) -> None:
    assert failed(vocab_size=vocab_size) == set()
    assert len(run_self_test()) == 14


def breaking(
    compare: Callable[[torch.Tensor, torch.Tensor, ByteComparison], ByteComparison],
) -> type[Comparer]:
    class Broken(Comparer):
        def compare(self, index: int | None, reference: Buffer, run: Buffer) -> ByteComparison:
            outcome = compare_bytes(reference, run)
            outcome = compare(as_tensor(reference), as_tensor(run), outcome)
            if not outcome:
                self.found[index] = comparer.Difference(
                    index, outcome.unequal, outcome.first, outcome.rows, outcome.note
                )
            return outcome

    return Broken


def by_value(ours: torch.Tensor, theirs: torch.Tensor, sound: ByteComparison) -> ByteComparison:
    if ours.shape != theirs.shape:
        return sound
    if torch.equal(ours.float(), theirs.float()):
        return SAME
    return ByteComparison(1, 0, (0,), 1, None) if sound else sound


def by_tolerance(ours: torch.Tensor, theirs: torch.Tensor, sound: ByteComparison) -> ByteComparison:
    if ours.shape != theirs.shape:
        return sound
    close = torch.allclose(ours.float(), theirs.float(), rtol=0.02, equal_nan=True)
    return SAME if close else sound


def by_sorted_bytes(
    ours: torch.Tensor, theirs: torch.Tensor, sound: ByteComparison
) -> ByteComparison:
    both = [bytewise.flat_bytes(t).sort().values for t in (ours, theirs)]
    return SAME if torch.equal(*both) and sound.note is None else sound


def by_bytes_alone(
    ours: torch.Tensor, theirs: torch.Tensor, sound: ByteComparison
) -> ByteComparison:
    return SAME if sound.unequal == 0 else sound


def off_by_one(ours: torch.Tensor, theirs: torch.Tensor, sound: ByteComparison) -> ByteComparison:
    if sound.first is None:
        return sound
    return ByteComparison(sound.unequal, sound.first + 1, sound.rows, sound.num_rows, sound.note)


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        pytest.param(
            lambda ours, theirs, sound: SAME,
            {
                "flipped bit is seen",
                "flipped prefill bit is seen",
                "other nan is seen",
                "zero sign is seen",
                "other dtype is seen",
                "other shape is seen",
                "swapped rows are seen",
            },
            id="says-equal",
        ),
        pytest.param(
            by_value,
            {"equal nan passes", "zero sign is seen", "other dtype is seen"},
            id="values",
        ),
        pytest.param(
            by_tolerance,
            {
                "flipped bit is seen",
                "flipped prefill bit is seen",
                "other nan is seen",
                "zero sign is seen",
                "other dtype is seen",
            },
            id="tolerance",
        ),
        pytest.param(by_sorted_bytes, {"swapped rows are seen"}, id="order-blind"),
        pytest.param(by_bytes_alone, {"other dtype is seen", "other shape is seen"}, id="form"),
        pytest.param(
            off_by_one, {"flipped bit is seen", "flipped prefill bit is seen"}, id="off-by-one"
        ),
    ],
)
def test_a_broken_comparison_is_caught(
    fault: Callable[[torch.Tensor, torch.Tensor, ByteComparison], ByteComparison], caught: set[str]
) -> None:
    assert failed(breaking(fault)) >= caught


class Truncating(Comparer):
    """Looks at the first part of a buffer alone."""

    def compare(self, index: int | None, reference: Buffer, run: Buffer) -> ByteComparison:
        ours, theirs = as_tensor(reference), as_tensor(run)
        if ours.shape == theirs.shape and ours.ndim == 2:
            ours, theirs = ours[:, :-1], theirs[:, :-1]
        return super().compare(index, ours.clone(), theirs.clone())


class Shifting(Comparer):
    """Compares every step but names the one after it."""

    def compare(self, index: int | None, reference: Buffer, run: Buffer) -> ByteComparison:
        return super().compare(index if index is None else index + 1, reference, run)


class Trusting(Comparer):
    """Takes every digest for equal."""

    def step_digest(self, index: int, reference: Digests, run: Digests) -> bool:
        return super().step_digest(index, reference, reference)


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (Truncating, {"flipped bit is seen", "flipped prefill bit is seen", "nothing is refused"}),
        (Shifting, {"flipped bit is seen"}),
        (Trusting, {"digests see a flipped bit", "digests see an exchange"}),
    ],
)
def test_a_broken_comparer_is_caught(broken: type[Comparer], caught: set[str]) -> None:
    assert failed(broken) >= caught


def hash_of_sum(logits_RV: torch.Tensor, key: int) -> tuple[str, ...]:
    content = logits_RV.contiguous().view(torch.int16).long()
    return tuple(f"{int(total) + key:032x}" for total in content.sum(dim=1))


def hash_of_start(logits_RV: torch.Tensor, key: int) -> tuple[str, ...]:
    starts = logits_RV[:, :8].contiguous().view(torch.int16)
    return tuple(hashlib.sha256(start.numpy().tobytes()).hexdigest() for start in starts)


def hash_of_all_rows(logits_RV: torch.Tensor, key: int) -> tuple[str, ...]:
    content = logits_RV.contiguous().view(torch.int16).numpy().tobytes()
    return (hashlib.sha256(content).hexdigest(),) * len(logits_RV)


@pytest.mark.parametrize(
    ("hash_rows", "caught"),
    [
        pytest.param(hash_of_sum, {"digests see an exchange"}, id="order-blind"),
        pytest.param(hash_of_start, {"digests see a flipped bit"}, id="truncating"),
        pytest.param(hash_of_all_rows, {"digests see a flipped bit"}, id="mixes-rows"),
    ],
)
def test_a_broken_hash_is_caught(hash_rows: HashRows, caught: set[str]) -> None:
    assert failed(hash_rows=hash_rows) == caught


def test_sentences_tell_what_went_wrong() -> None:
    checks = run_self_test(breaking(off_by_one))
    sentence = next(c.sentence for c in checks if c.name == "flipped bit is seen")
    assert "(step, bytes, first, rows) is [(1, 1, 1, (0,))], not [(1, 1, 0, (0,))]" in sentence


def test_too_small_a_bench_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 2 rows"):
        run_self_test(num_rows=1)


@pytest.mark.gpu
def test_the_comparer_passes_its_own_test_on_the_gpu() -> None:
    assert failed(device="cuda", vocab_size=151936) == set()


@pytest.mark.gpu
def test_a_reference_on_the_host_is_compared_with_a_run_on_the_gpu() -> None:
    logits = torch.randn(3, 1000).to(torch.bfloat16)
    run = logits.cuda()
    assert compare_bytes(logits, run)
    run[1, 7] += 1
    assert compare_bytes(logits, run).rows == (1,)
