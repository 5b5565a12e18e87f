"""The comparison of a run: its record, its order, and differences known by digest alone."""

from __future__ import annotations

import pytest
import torch

from metpipe.diff.bytewise import NothingComparedError
from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison, StateDifference
from metpipe.diff.digest import logits_digest, row_digests
from metpipe.diff.severity import Severity


def bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


BASE = [bf16(1, 2), bf16(1, 2), bf16(3, 4), bf16(5, 6)]


def compare(runs: list[torch.Tensor], base: list[torch.Tensor] = BASE) -> Comparison:
    comparer = Comparer("circuit")
    comparer.prefill(base[0], runs[0])
    for step, (ours, theirs) in enumerate(zip(base[1:], runs[1:], strict=True)):
        comparer.step(step, ours, theirs)
    return comparer.result()


def test_stated_example() -> None:
    found = compare([bf16(1, 2.5), bf16(1, 2), bf16(3, 4.5), bf16(5.5, 6.5)])
    assert not found
    assert not found.prefill_equal
    assert found.prefill_first_diff == 2
    assert (found.steps, found.mismatched_steps, found.first_mismatch) == (3, 2, 1)
    assert found.max_mismatched_bytes == 2
    assert found.severity == Severity(6, 4, 0, max_abs=0.5, max_ulp=32, argmax_flips=0)
    assert [d.first_byte for d in found.differences] == [2, 0]
    assert found.sentence == ("circuit: prefill equal false, 2 of 3 steps differ (first at 1)")


def test_equal_runs() -> None:
    found = compare([t.clone() for t in BASE])
    assert found
    assert found.prefill_equal
    assert (found.mismatched_steps, found.first_mismatch) == (0, None)
    assert (found.max_mismatched_bytes, found.prefill_first_diff) == (0, None)
    assert (found.severity, found.num_states, found.state_diff) == (None, 0, ())
    assert (found.argmax_flips, found.top1_agreement) == (0, 1.0)
    assert found.sentence == "circuit: prefill equal true, 0 of 3 steps differ"


def test_prefill_alone_can_differ() -> None:
    found = compare([bf16(1, 3), *[t.clone() for t in BASE[1:]]])
    assert not found
    assert found.mismatched_steps == 0
    assert found.top1_agreement == 1.0
    assert found.severity is not None


def test_rows_and_severity_are_those_that_differ() -> None:
    base = torch.stack([bf16(1, 2), bf16(3, 1), bf16(5, 6)])
    run = base.clone()
    run[1, 1] = 4.0
    found = compare([base.clone(), run], [base, base])
    assert found.differences[0].rows == (1,)
    assert found.differences[0].first_byte == 7
    severity = found.differences[0].severity
    assert severity is not None
    assert (severity.elements, severity.unequal_elements, severity.max_abs) == (2, 1, 3.0)
    assert severity.argmax_flips == 1
    assert found.step_rows == 3
    assert found.top1_agreement == pytest.approx(2 / 3)


def test_a_dtype_change_is_a_difference_that_says_so() -> None:
    found = compare([BASE[0].clone(), BASE[1].float(), BASE[2].clone(), BASE[3].clone()])
    assert found.first_mismatch == 0
    assert found.differences[0].severity is None
    assert found.top1_agreement is None
    assert found.sentence.endswith("; dtype is float32, the reference's is bfloat16")


def test_a_missing_row_is_a_difference_without_severity() -> None:
    base = torch.stack([bf16(1, 2), bf16(3, 1)])
    found = compare([base.clone(), base[:1].clone()], [base, base])
    assert found.differences[0].rows == (0, 1)
    assert found.severity is None
    assert found.sentence.endswith("; shape is [1, 2], the reference's is [2, 2]")


def test_steps_come_in_order_and_once() -> None:
    comparer = Comparer("circuit", expected_steps=2)
    comparer.prefill(BASE[0], BASE[0].clone())
    with pytest.raises(ValueError, match="compared twice"):
        comparer.prefill(BASE[0], BASE[0].clone())
    with pytest.raises(ValueError, match="step 1 after 0 steps"):
        comparer.step(1, BASE[1], BASE[1].clone())
    comparer.step(0, BASE[1], BASE[1].clone())
    with pytest.raises(ValueError, match="step 0 after 1 steps"):
        comparer.step_digest(0, "a", "a")
    with pytest.raises(ValueError, match="1 of 2 steps compared"):
        comparer.result()


def test_nothing_compared_is_refused() -> None:
    comparer = Comparer("circuit")
    with pytest.raises(NothingComparedError, match="no prefill"):
        comparer.result()
    comparer.prefill(BASE[0], BASE[0].clone())
    with pytest.raises(NothingComparedError, match="no step"):
        comparer.result()
    with pytest.raises(NothingComparedError, match="no digests"):
        comparer.step_digest(0, (), ())
    with pytest.raises(NothingComparedError, match="state digest"):
        comparer.state({}, {})
    with pytest.raises(NothingComparedError, match="no state after step 0"):
        comparer.step_states(0, (), ())


def test_digests_tell_the_step_and_the_row_until_decoded_again() -> None:
    base = torch.stack([bf16(1, 2), bf16(3, 1)])
    run = base.clone()
    run[1, 0] = 7.0
    comparer = Comparer("circuit")
    assert comparer.prefill_digest(logits_digest(base), logits_digest(base.clone()))
    assert not comparer.step_digest(0, row_digests(base), row_digests(run))
    found = comparer.result()
    assert (found.first_mismatch, found.undecoded) == (0, (0,))
    assert found.differences[0].rows == (1,)
    assert (found.max_mismatched_bytes, found.top1_agreement) == (None, None)
    comparer.decoded_again(0, base, run)
    again = comparer.result()
    assert again.undecoded == ()
    assert again.max_mismatched_bytes == 1
    assert again.differences[0].first_byte == 4


def test_prefill_known_by_digest_can_be_decoded_again() -> None:
    comparer = Comparer("circuit")
    comparer.prefill_digest("a", "b")
    comparer.step(0, BASE[0], BASE[0].clone())
    assert comparer.result().undecoded == (None,)
    comparer.decoded_again(None, BASE[0], BASE[1] + 1)
    assert comparer.result().prefill_first_diff == 0


def test_bytes_that_turn_out_equal_remain_a_difference() -> None:
    comparer = Comparer("circuit")
    comparer.prefill(BASE[0], BASE[0].clone())
    comparer.step_digest(0, "a", "b")
    comparer.decoded_again(0, BASE[0], BASE[0].clone())
    found = comparer.result()
    assert not found
    assert "does not repeat" in found.sentence
    with pytest.raises(ValueError, match="not a difference known by its digest"):
        comparer.decoded_again(0, BASE[0], BASE[0].clone())


def test_another_number_of_row_digests_differs() -> None:
    comparer = Comparer("circuit")
    comparer.prefill_digest("a", "a")
    assert not comparer.step_digest(0, ("a", "b"), ("a",))
    found = comparer.result()
    assert found.differences[0].rows == (1,)
    assert "1 rows, not 2" in found.sentence


def test_states_alone_can_differ() -> None:
    comparer = Comparer("circuit")
    comparer.prefill(BASE[0], BASE[0].clone())
    comparer.step(0, BASE[0], BASE[0].clone())
    assert comparer.state({"l0.k": "1", "l0.v": "2"}, {"l0.v": "3", "l1.k": "4"}) == (
        "l0.k",
        "l0.v",
        "l1.k",
    )
    found = comparer.result()
    assert not found
    assert found.sentence.endswith("0 of 1 steps differ, 3 of 3 states differ (first l0.k)")


def with_one_equal_step() -> Comparer:
    comparer = Comparer("circuit")
    comparer.prefill(BASE[0], BASE[0].clone())
    comparer.step(0, BASE[0], BASE[0].clone())
    return comparer


def test_a_state_that_differs_after_a_step_names_step_and_sequences() -> None:
    comparer = with_one_equal_step()
    assert comparer.step_states(0, ("a", "b", "c"), ("a", "b", "c"))
    assert comparer.result()
    assert not comparer.step_states(3, ("a", "b", "c"), ("x", "b", "y"))
    assert not comparer.step_states(4, ("a", "b"), ("a",))
    found = comparer.result()
    assert not found
    assert found.mismatched_steps == 0
    assert found.state_steps == (StateDifference(3, (0, 2)), StateDifference(4, (1,)))
    assert found.sentence.endswith("state differs after step 3 (sequence 0)")


def test_states_at_the_end_are_named_before_those_of_a_step() -> None:
    comparer = with_one_equal_step()
    comparer.step_states(0, ("a",), ("b",))
    comparer.state({"l0.k": "1"}, {"l0.k": "2"})
    assert comparer.result().sentence.endswith("1 of 1 states differ (first l0.k)")


def test_draft_ids_alone_can_differ() -> None:
    comparer = with_one_equal_step()
    assert comparer.ids(0, (7, 8), [7, 8])
    assert comparer.result()
    assert not comparer.ids(0, (7, 8), [7, 9])
    found = comparer.result()
    assert not found
    assert (found.first_mismatch, found.max_mismatched_bytes, found.undecoded) == (0, 0, ())
    assert found.sentence.endswith("; ids are 9 at 1, the reference's are 8 at 1")


def test_draft_ids_are_noted_beside_the_bytes_of_their_step() -> None:
    comparer = Comparer("circuit")
    comparer.prefill(BASE[0], BASE[0].clone())
    comparer.ids(None, (1,), (2,))
    comparer.step(0, BASE[0], BASE[2].clone())
    comparer.ids(0, (1,), (2,))
    found = comparer.result()
    assert not found.prefill_equal
    difference = found.differences[0]
    assert (difference.rows, difference.severity is None) == ((0,), False)
    assert difference.note == "ids are 2 at 0, the reference's are 1 at 0"


def test_digests_cover_dtype_shape_and_order() -> None:
    logits = bf16(1, 2, 3, 4)
    others = [
        logits.view(torch.float16),
        logits.view(2, 2),
        bf16(2, 1, 3, 4),
        bf16(1, 2, 3, -4),
    ]
    digests = {logits_digest(t) for t in (logits, *others)}
    assert len(digests) == 5
    assert all(len(digest) == 32 for digest in digests)
    assert logits_digest(logits.clone()) == logits_digest(logits)


def test_an_injected_hash_is_used_and_never_mixed() -> None:
    logits = bf16(1, 2)
    seen: list[torch.Tensor] = []

    def hash_bytes(content: torch.Tensor) -> str:
        seen.append(content)
        return "00"

    digest = logits_digest(logits, hash_bytes=hash_bytes)
    assert seen[0].dtype == torch.uint8
    assert seen[0].tolist() == [128, 63, 0, 64]
    assert digest != logits_digest(logits)
    assert digest == logits_digest(bf16(3, 4), hash_bytes=hash_bytes)
