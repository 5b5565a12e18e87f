"""Which rules apply where: kernels, capabilities, settings, levers, rows, selection, launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import (
    EmptySection,
    MissingKernel,
    PolicyMissing,
    RowTable,
    Select,
    Situation,
    Uncovered,
    UnknownRule,
    ZeroRows,
    fuse,
)
from metpipe.errors import ConfigError

from .toy import (
    DIFFERS,
    IDENTICAL,
    LINEAR_ACT,
    NORM_LINEAR,
    SINGLES,
    Toy,
    chain,
    plan,
    rule,
    rule_set,
)


def test_an_absent_kernel_is_never_selected() -> None:
    present = frozenset({"k.embed", "k.norm", "k.linear", "k.act", "k.add"})
    made = plan(chain(), *SINGLES, NORM_LINEAR, kernels=present)
    assert made.rules_used() == {"embed", "norm", "linear", "act", "add"}


def test_a_gap_is_uncovered_and_named() -> None:
    with pytest.raises(Uncovered) as caught:
        plan(
            chain(), *SINGLES, kernels=frozenset({"k.embed", "k.norm", "k.linear", "k.add"}), rows=3
        )
    message = str(caught.value)
    assert "b0.act (silu_mul)" in message
    assert "mode decode at 3 rows" in message
    assert "act: its kernel k.act is absent" in message


def test_a_missing_capability_skips_the_rule() -> None:
    needs = rule(
        "fast", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100,
        requires=frozenset({"amx"}),
    )  # fmt: skip
    assert "fast" not in plan(chain(), *SINGLES, needs).rules_used()
    assert "fast" in plan(chain(), *SINGLES, needs, capabilities=frozenset({"amx"})).rules_used()


def test_a_rule_that_differs_needs_its_own_lever() -> None:
    lossy = rule("lossy", ["rms_norm", "linear"], numerics=DIFFERS, priority=200)
    for levers, used in ((set(), False), ({"other"}, False), ({"fast"}, True)):
        made = plan(chain(), *SINGLES, lossy, levers=frozenset(levers))
        assert ("lossy" in made.rules_used()) is used


@pytest.mark.parametrize(("rows", "applies"), [(1, False), (2, True), (4, True), (5, False)])
def test_row_ranges_include_both_ends(rows: int, applies: bool) -> None:
    some = rule("some", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100, rows=(2, 4))
    assert ("some" in plan(chain(), *SINGLES, some, rows=rows).rules_used()) is applies


def test_a_mode_that_the_rule_does_not_name_skips_it() -> None:
    one = rule("one", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100, modes=["verify"])
    assert "one" not in plan(chain(), *SINGLES, one).rules_used()
    assert "one" in plan(chain(), *SINGLES, one, mode="verify").rules_used()


def test_when_compares_settings() -> None:
    tiered = rule(
        "tiered", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100,
        when={"row_tiers": "by_rows"},
    )  # fmt: skip
    for value, used in (("by_rows", True), ("canonical", False)):
        made = plan(chain(), *SINGLES, tiered, settings={"row_tiers": value})
        assert ("tiered" in made.rules_used()) is used


def test_an_unstated_setting_is_an_error_even_of_a_rule_for_another_mode() -> None:
    other = rule("other", ["rms_norm"], modes=["verify"], when={"row_tiers": "exact"})
    with pytest.raises(PolicyMissing, match=r"toy\.toml, rule other: .*'row_tiers'"):
        plan(chain(), *SINGLES, other)


def test_zero_rows() -> None:
    with pytest.raises(ZeroRows):
        plan(chain(), *SINGLES, rows=0)


def test_no_draft_nodes() -> None:
    with pytest.raises(EmptySection, match="draft"):
        plan(chain(), *SINGLES, mode="draft")


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigError, match="'dekode'"):
        plan(chain(), *SINGLES, mode="dekode")


def test_reference_filters_by_class_and_not_by_kernel() -> None:
    """A reference rule stays, even where a bit-identical one names the same kernel."""
    same_kernel = rule("same", ["rms_norm", "linear"], "k.norm", numerics=IDENTICAL, priority=100)
    made = plan(chain(), *SINGLES, same_kernel, select=Select.reference())
    assert made.rules_used() == {"embed", "norm", "linear", "act", "add"}


def test_only_admits_the_reference_rules_and_the_named_ones() -> None:
    made = plan(chain(), *SINGLES, NORM_LINEAR, LINEAR_ACT, select=Select.only(["norm_linear"]))
    assert made.rules_used() == {"embed", "norm_linear", "act", "add"}


def test_without_leaves_the_named_rules_out() -> None:
    made = plan(chain(), *SINGLES, NORM_LINEAR, LINEAR_ACT, select=Select.without(["linear_act"]))
    assert "norm_linear" in made.rules_used()


@pytest.mark.parametrize("select", [Select.only(["typo"]), Select.without(["typo"])])
def test_a_selection_of_an_unknown_rule_names_it(select: Select) -> None:
    with pytest.raises(UnknownRule, match=r"'typo' in toy\.toml; its rules are act, add"):
        plan(chain(), *SINGLES, select=select)


def test_a_selected_rule_without_its_kernel_is_an_error() -> None:
    present = frozenset(f"k.{name}" for name in ("embed", "norm", "linear", "act", "add"))
    with pytest.raises(MissingKernel, match=r"'norm_linear'.*'k\.norm_linear'"):
        plan(chain(), *SINGLES, NORM_LINEAR, kernels=present, select=Select.only(["norm_linear"]))


def test_a_row_range_is_held_against_the_rows_of_the_node() -> None:
    """The head of a prefill runs over one row, whatever the length of the prompt."""
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("norm", "final_norm", "x", "y", rows="s", weight="bf16").output("y").circuit()
    one_row, many_rows = (
        rule("one", ["final_norm"], rows=(1, 1)),
        rule("many", ["final_norm"], rows=(2, 99)),
    )
    made = plan(circuit, *SINGLES, one_row, many_rows, mode="prefill", rows=64)
    assert made.rules_used() == {"embed", "one"}
    assert plan(circuit, *SINGLES, one_row, many_rows, mode="multi_seq", rows=64).rules_used() == {
        "embed", "many",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("repeat", "rows", "launches"),
    [("once", 96, 1), ("per_row", 96, 96), ("per_row_but_last", 96, 95), ("chunk64", 96, 2),
     ("chunk64", 64, 1), ("chunk64", 65, 2)],
)  # fmt: skip
def test_repeats_multiply_launches(repeat: str, rows: int, launches: int) -> None:
    repeated = rule("repeated", ["silu_mul"], priority=50, repeat=repeat)
    base = plan(chain(), *SINGLES, rows=rows).launches(rows)
    assert plan(chain(), *SINGLES, repeated, rows=rows).launches(rows) == base - 1 + launches


def test_a_group_without_kernels_launches_nothing_and_copies() -> None:
    copied = replace(rule("copied", ["embed"], priority=50, copies="once"), kernels=())
    made = plan(chain(), *SINGLES, copied)
    assert (made.launches(1), made.copies(1)) == (4, 1)


def test_launches_of_a_one_row_head_do_not_follow_the_prompt() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("norm", "final_norm", "x", "y", rows="s", weight="bf16").output("y").circuit()
    per_row = rule("per_row", ["final_norm"], repeat="per_row", copies="per_row")
    made = plan(circuit, *SINGLES, per_row, mode="prefill", rows=64)
    assert (made.launches(64), made.copies(64)) == (2, 1)


def test_a_row_table_is_only_for_batched_verify() -> None:
    with pytest.raises(ConfigError, match="only verify_batch"):
        plan(chain(), *SINGLES, table=RowTable.parse("2x1"), rows=2)


def test_fusing_leaves_circuit_and_rules_alone() -> None:
    found = rule_set(*SINGLES)
    situation = Situation("decode", 1, frozenset(f"k.{entry.id}" for entry in SINGLES))
    assert fuse(chain(), found, situation).digest() == fuse(chain(), found, situation).digest()
