"""The verdict's order as a table, and its reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.diff.comparison import Comparison, Difference
from metpipe.diff.controls import judge_detection, judge_repeat
from metpipe.diff.records import Check, Control, ControlVerdict, Disclosure, MovedBytes, VacuousPair
from metpipe.diff.vacuity import find_vacuous
from metpipe.diff.verdict import Evidence, Expect, JudgedCase, judge
from metpipe.errors import Exit


def comparison(variant: str = "circuit", differs_at: int | None = None) -> Comparison:
    differences = () if differs_at is None else (Difference(differs_at, 1, 0, (0,)),)
    return Comparison(variant, 16, 16, None, differences)


def case(
    variant: str = "circuit",
    differs_at: int | None = None,
    *,
    name: str = "prompt 0",
    expect: Expect = "equal",
) -> JudgedCase:
    return JudgedCase(name, comparison(variant, differs_at), expect)


def control(verdict: ControlVerdict, variant: str = "circuit") -> Control:
    sentence = f"detection control, {variant}: {verdict}"
    return Control("token changed", variant, 8, 0, None, verdict, sentence)


def vacuous(variant: str = "circuit", *, allowed: bool = False) -> VacuousPair:
    return VacuousPair("reference", variant, allowed, f"{variant} is vacuous")


GOOD = Evidence(
    cases=(case(),),
    repeats=(judge_repeat(comparison("legacy")),),
    controls=(control("ok"),),
    self_test=(Check("flipped bit", True, "as it must be"),),
)
REPEAT_DIFFERS = {"repeats": (judge_repeat(comparison("legacy", 3)),)}
SELF_TEST_FAILS = {"self_test": (Check("flipped bit", False, "not seen"),)}
DIFFERS = {"cases": (case(differs_at=7),)}
MOVED = {"moved": (MovedBytes("prompt 0", "circuit", ("slot 3",)),)}
LEAK = {"controls": (control("early"),)}
OTHER_ROW = {"controls": (control("other_row"),)}
BLIND = {"controls": (control("blind"),)}
LATE = {"controls": (control("late"),)}
UNEXERCISED = {"unexercised": ("no draft was rejected",)}
VACUOUS = {"vacuous": (vacuous(),)}
NO_CASE = {"cases": ()}
SHOWN = {"cases": (case(), case("fast", 2, expect="report"))}


@pytest.mark.parametrize(
    ("parts", "outcome", "num_reasons"),
    [
        pytest.param([], Exit.PASS, 0, id="all-good"),
        pytest.param([REPEAT_DIFFERS], Exit.INCONCLUSIVE, 1, id="repeat"),
        pytest.param([SELF_TEST_FAILS], Exit.INCONCLUSIVE, 1, id="self-test"),
        pytest.param([DIFFERS], Exit.FAIL, 1, id="differs"),
        pytest.param([MOVED], Exit.FAIL, 1, id="moved"),
        pytest.param([LEAK], Exit.FAIL, 1, id="leak"),
        pytest.param([OTHER_ROW], Exit.FAIL, 1, id="other-row"),
        pytest.param([BLIND], Exit.INCONCLUSIVE, 1, id="blind"),
        pytest.param([LATE], Exit.INCONCLUSIVE, 1, id="late"),
        pytest.param([UNEXERCISED], Exit.INCONCLUSIVE, 1, id="unexercised"),
        pytest.param([VACUOUS], Exit.INCONCLUSIVE, 1, id="vacuous"),
        pytest.param([{"vacuous": (vacuous(allowed=True),)}], Exit.PASS, 0, id="allowed"),
        pytest.param([NO_CASE], Exit.INCONCLUSIVE, 1, id="nothing"),
        pytest.param([{"repeats": ()}], Exit.INCONCLUSIVE, 1, id="no-repeat"),
        pytest.param([{"self_test": ()}], Exit.INCONCLUSIVE, 1, id="no-self-test"),
        pytest.param([{"controls": ()}], Exit.INCONCLUSIVE, 1, id="no-control"),
        pytest.param([SHOWN], Exit.PASS, 0, id="shown-only"),
        pytest.param([SHOWN, {"vacuous": (vacuous("fast"),)}], Exit.PASS, 0, id="shown-vacuous"),
        pytest.param(
            [SHOWN, {"moved": (MovedBytes("prompt 0", "fast", ("slot 3",)),)}],
            Exit.PASS,
            0,
            id="shown-moved",
        ),
        pytest.param(
            [{"moved": (MovedBytes("prompt 0", "legacy", ("slot 3",)),)}],
            Exit.FAIL,
            1,
            id="reference-moved",
        ),
        pytest.param([{"moved": (MovedBytes("p", "circuit", ()),)}], Exit.PASS, 0, id="unmoved"),
        pytest.param([REPEAT_DIFFERS, DIFFERS], Exit.INCONCLUSIVE, 2, id="repeat-over-differs"),
        pytest.param([SELF_TEST_FAILS, LEAK], Exit.INCONCLUSIVE, 2, id="self-test-over-leak"),
        pytest.param([DIFFERS, BLIND], Exit.FAIL, 2, id="differs-over-blind"),
        pytest.param([MOVED, VACUOUS], Exit.FAIL, 2, id="moved-over-vacuous"),
        pytest.param([LEAK, UNEXERCISED], Exit.FAIL, 2, id="leak-over-unexercised"),
        pytest.param(
            [REPEAT_DIFFERS, DIFFERS, MOVED, BLIND, UNEXERCISED, VACUOUS],
            Exit.INCONCLUSIVE,
            6,
            id="everything",
        ),
    ],
)
def test_order_of_the_verdict(
    parts: list[dict[str, object]], outcome: Exit, num_reasons: int
) -> None:
    evidence = GOOD
    for part in parts:
        evidence = replace(evidence, **part)  # type: ignore[arg-type]
    verdict = judge(evidence)
    assert verdict.outcome == outcome
    assert len(verdict.reasons) == num_reasons, verdict.reasons


def test_reason_names_case_variant_and_first_step() -> None:
    cases = (case("circuit-reference"), case(differs_at=7))
    controls = (control("ok", "circuit-reference"), control("ok"))
    verdict = judge(replace(GOOD, cases=cases, controls=controls))
    assert verdict.reasons == (
        "prompt 0, circuit: prefill equal true, 1 of 16 steps differ (first at 7)",
    )


def test_blind_control_is_one_reason_that_says_so() -> None:
    blind = judge_detection(comparison(), changed_step=8)
    verdict = judge(replace(GOOD, controls=(blind,)))
    assert len(verdict.reasons) == 1
    assert "detection control" in verdict.reasons[0]


def test_a_difference_of_one_width_and_a_blind_control_of_another_come_in_that_order() -> None:
    cases = (case(name="2 rows"), case(name="128 rows", differs_at=3), case(name="16 rows"))
    verdict = judge(replace(GOOD, cases=cases, controls=(control("ok"), control("blind"))))
    assert verdict.outcome == Exit.FAIL
    assert len(verdict.reasons) == 2
    assert verdict.reasons[0].startswith("128 rows, circuit")
    assert "blind" in verdict.reasons[1]


def test_only_shown_comparisons_are_nothing_compared() -> None:
    verdict = judge(replace(GOOD, cases=(case(expect="report", differs_at=1),)))
    assert verdict.outcome == Exit.INCONCLUSIVE
    assert verdict.reasons == ("nothing was compared: no judged comparison.",)


def test_every_judged_variant_needs_its_control() -> None:
    cases = (case(), case("graphed"), case("graphed", name="prompt 1"))
    verdict = judge(replace(GOOD, cases=cases))
    assert verdict.outcome == Exit.INCONCLUSIVE
    assert len(verdict.reasons) == 1
    assert "graphed: no detection control" in verdict.reasons[0]


PLANS = {"decode 1": "ab", "prefill 23": "cd"}
CIRCUIT = Disclosure("circuit", PLANS, {"norm.rms_norm": "ef"}, graphs=False)


@pytest.mark.parametrize(
    ("other", "is_vacuous"),
    [
        pytest.param(replace(CIRCUIT, plan_digests=dict(PLANS)), True, id="same"),
        pytest.param(replace(CIRCUIT, forward="legacy"), False, id="forward"),
        pytest.param(replace(CIRCUIT, plan_digests={"decode 1": "ab"}), False, id="rows-ran"),
        pytest.param(replace(CIRCUIT, plan_digests={**PLANS, "decode 1": "x"}), False, id="plan"),
        pytest.param(replace(CIRCUIT, kernel_digests={"norm.rms_norm": "x"}), False, id="kernel"),
        pytest.param(replace(CIRCUIT, graphs=True), False, id="graphs"),
    ],
)
def test_vacuous_pair_is_the_same_program(other: Disclosure, is_vacuous: bool) -> None:
    named = {"a": CIRCUIT, "b": other}
    pairs = find_vacuous(named, [("a", "b")])
    assert [(p.reference, p.variant, p.allowed) for p in pairs] == (
        [("a", "b", False)] if is_vacuous else []
    )


def test_vacuous_pair_may_be_allowed_and_must_be_disclosed() -> None:
    named = {"a": CIRCUIT, "b": CIRCUIT}
    pair = find_vacuous(named, [("a", "b")], allowed={"b"})[0]
    assert pair.allowed
    assert "b against a is vacuous" in pair.sentence
    with pytest.raises(KeyError):
        find_vacuous(named, [("a", "c")])


def test_a_control_of_one_mode_says_nothing_of_another() -> None:
    batch = JudgedCase("batch, width 2", comparison(), mode="batch")
    verdict = judge(replace(GOOD, cases=(case(), batch)))
    assert verdict.outcome == Exit.INCONCLUSIVE
    assert verdict.reasons == (
        "circuit, batch: no detection control ran, so its comparison could be blind.",
    )
    seen = replace(control("ok"), mode="batch")
    both = replace(GOOD, cases=(case(), batch), controls=(control("ok"), seen))
    assert judge(both).outcome == Exit.PASS
