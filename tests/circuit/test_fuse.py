"""What the matcher takes and refuses, in which order groups run, what edges are stored as."""

from __future__ import annotations

import pytest

from metpipe.circuit import (
    Cycle,
    Element,
    FormatConflict,
    Uncovered,
)

from .toy import (
    IDENTICAL,
    LINEAR_ACT,
    NORM_LINEAR,
    SINGLES,
    Toy,
    chain,
    groups,
    plan,
    rule,
)


def test_every_node_is_in_exactly_one_group() -> None:
    made = plan(chain(), *SINGLES, NORM_LINEAR)
    assert sorted(node for group in made.groups for node in group.nodes) == [0, 1, 2, 3, 4]
    assert groups(made) == [
        ("embed", ["embed"]),
        ("norm_linear", ["norm", "up"]),
        ("act", ["act"]),
        ("add", ["add"]),
    ]


def test_group_indices_are_execution_positions() -> None:
    assert [group.index for group in plan(chain(), *SINGLES).groups] == [0, 1, 2, 3, 4]


def test_higher_priority_wins_an_overlap() -> None:
    act_wins = rule("z_act", ["linear", "silu_mul"], numerics=IDENTICAL, priority=101)
    assert plan(chain(), *SINGLES, NORM_LINEAR, act_wins).rules_used() == {
        "embed", "norm", "z_act", "add",
    }  # fmt: skip


def test_equal_priority_goes_to_the_lower_id_whatever_the_file_order() -> None:
    rules = [*SINGLES, NORM_LINEAR, LINEAR_ACT]
    made, reversed_file = plan(chain(), *rules), plan(chain(), *reversed(rules))
    assert "linear_act" in made.rules_used()
    assert "norm_linear" not in made.rules_used()
    assert reversed_file.digest() == made.digest()


def test_an_intermediate_read_outside_needs_keep() -> None:
    loose = rule("embed_norm", ["embed", "rms_norm"], numerics=IDENTICAL, priority=100)
    assert "embed_norm" not in plan(chain(), *SINGLES, loose).rules_used()
    keeping = rule(
        "embed_norm", [Element("embed", keep=True), "rms_norm"], numerics=IDENTICAL, priority=100
    )
    made = plan(chain(), *SINGLES, keeping)
    assert "embed_norm" in made.rules_used()
    assert "x" in made.materialized


def test_a_declared_output_is_read_outside() -> None:
    circuit = (
        Toy()
        .add("embed", "embed", "", "x", weight="bf16")
        .add("norm", "rms_norm", "x", "xn", weight="bf16")
        .output("x")
        .output("xn")
        .circuit()
    )
    loose = rule("embed_norm", ["embed", "rms_norm"], numerics=IDENTICAL, priority=100)
    assert "embed_norm" not in plan(circuit, *SINGLES, loose).rules_used()


def test_an_outside_node_between_members_refuses_the_chain() -> None:
    around = rule(
        "around", [Element("embed", keep=True), "residual_add"], numerics=IDENTICAL, priority=100
    )
    assert "around" not in plan(chain(), *SINGLES, around).rules_used()


def test_a_state_between_members_refuses_the_chain() -> None:
    toy = Toy().state("kv").add("embed", "embed", "", "x", weight="bf16")
    toy.add("rope", "rope", "x", "q").add("write", "kv_write", "x", "", state={"kv": "update"})
    toy.add("attend", "paged_attention", "q", "a", state={"kv": "read"}).output("a")
    singles = [rule(op, [op]) for op in ("embed", "rope", "kv_write", "paged_attention")]
    # rope does not feed the write here, so nothing lies between rope and attention ...
    around = rule("around", ["rope", "paged_attention"], numerics=IDENTICAL, priority=100)
    assert "around" in plan(toy.circuit(), *singles, around).rules_used()
    # ... but from the embed, the write does: attention must see what it stored.
    whole = rule(
        "whole", [Element("embed", keep=True), "rope", "paged_attention"],
        numerics=IDENTICAL, priority=100,
    )  # fmt: skip
    assert "whole" not in plan(toy.circuit(), *singles, whole).rules_used()


def test_a_sibling_joins_by_its_block() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.block("b1").add("q", "linear", "x", "q", role="q", weight="bf16")
    toy.add("k", "linear", "x", "k", role="k", weight="bf16")
    toy.block("b2").add("k2", "linear", "x", "k2", role="k", weight="bf16")
    for edge in ("q", "k", "k2"):
        toy.output(edge)
    pair = rule(
        "pair",
        [
            Element("linear", roles=("q",), keep=True),
            Element("linear", roles=("k",), sibling=True),
        ],
        numerics=IDENTICAL,
        priority=100,
    )
    made = plan(toy.circuit(), *SINGLES, pair)
    assert ("pair", ["q", "k"]) in groups(made)
    assert ("linear", ["k2"]) in groups(made)


def test_the_lowest_free_reader_that_fits_is_next() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("n1", "rms_norm", "x", "a", weight="bf16").add(
        "n2", "rms_norm", "x", "b", weight="bf16"
    )
    circuit = toy.output("a").output("b").circuit()
    first = rule(
        "first", [Element("embed", keep=True), "rms_norm"], numerics=IDENTICAL, priority=100
    )
    assert groups(plan(circuit, *SINGLES, first)) == [
        ("first", ["embed", "n1"]),
        ("norm", ["n2"]),
    ]


@pytest.mark.parametrize(
    ("element", "fits"),
    [
        (Element("linear", roles=("gate_up",)), True),
        (Element("linear", roles=("down", "o")), False),
        (Element("linear", local="up"), True),
        (Element("linear", local="down"), False),
        (Element("linear", weight="bf16"), True),
        (Element("linear", weight="nvfp4/g16"), False),
        (Element("linear", layer_kind="full_attention"), False),
    ],
    ids=lambda value: repr(value) if isinstance(value, bool) else None,
)
def test_an_element_fits_by_every_field_it_states(element: Element, fits: bool) -> None:
    special = rule("special", [element], priority=50)
    assert ("special" in plan(chain(), *SINGLES, special).rules_used()) is fits


def test_a_quantised_weight_needs_a_rule_that_names_its_format() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("up", "linear", "x", "y", role="o", weight="nvfp4/g16").output("y").circuit()
    with pytest.raises(Uncovered, match="does not say that it reads weights in nvfp4/g16"):
        plan(circuit, *SINGLES)
    reads = rule("reads", [Element("linear", weight="nvfp4/g16")])
    assert "reads" in plan(circuit, *SINGLES, reads).rules_used()


def test_a_quantised_edge_needs_a_rule_that_names_its_format() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("quant", "act_quant", "x", "xq", formats="fp8/token")
    circuit = toy.add("o", "linear", "xq", "y", role="o", weight="bf16").output("y").circuit()
    quant = rule("quant", [Element("act_quant", format="fp8/token")])
    with pytest.raises(Uncovered, match="does not read fp8/token"):
        plan(circuit, *SINGLES, quant)
    reads = rule("reads", [Element("linear", input="fp8/token")], priority=50)
    assert "reads" in plan(circuit, *SINGLES, quant, reads).rules_used()


def test_a_rule_for_quantised_inputs_does_not_take_plain_ones() -> None:
    reads = rule("reads", [Element("linear", input="fp8/token")], priority=50)
    assert "reads" not in plan(chain(), *SINGLES, reads).rules_used()


def test_stored_f32_read_as_bf16_is_a_conflict() -> None:
    wide = rule("wide", [Element("silu_mul", writes="f32")], priority=50)
    with pytest.raises(
        FormatConflict, match=r"rule add: b0\.add reads a as bf16, .* stored as f32"
    ):
        plan(chain(), *SINGLES, wide)


def test_a_reader_that_names_the_stored_format_agrees() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("n", "rms_norm", "x", "xn", weight="bf16")
    circuit = toy.add("o", "linear", "xn", "y", role="o", weight="bf16").output("y").circuit()
    wide = rule("wide", [Element("rms_norm", writes="f32")], priority=50)
    reads = rule("reads", [Element("linear", input="f32")], priority=50)
    made = plan(circuit, *SINGLES, wide, reads)
    assert made.stored["xn"] == "f32"


def test_holds_is_what_later_members_of_the_group_read() -> None:
    held = [Element("linear", holds="f32"), Element("silu_mul", input="f32")]
    made = plan(chain(), *SINGLES, rule("held", held, numerics=IDENTICAL, priority=100))
    assert ("held", ["up", "act"]) in groups(made)
    ignored = [Element("linear", holds="f32"), "silu_mul"]
    with pytest.raises(FormatConflict):
        plan(chain(), *SINGLES, rule("ignored", ignored, numerics=IDENTICAL, priority=100))


def test_an_edge_is_fused_only_inside_one_group() -> None:
    made = plan(chain(), *SINGLES, LINEAR_ACT)
    assert set(made.fused_edges()) == {"u"}
    stored = rule(
        "linear_act", [Element("linear", stored=True), "silu_mul"], numerics=IDENTICAL, priority=100
    )
    assert "u" in plan(chain(), *SINGLES, stored).materialized


def test_groups_that_wait_for_each_other_are_a_cycle() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("a1", "linear", "x", "e1", role="q", weight="bf16")
    toy.add("b1", "linear", "x", "e2", role="k", weight="bf16")
    toy.add("b2", "rms_norm", "e1", "e3", weight="bf16")
    toy.add("a2", "rms_norm", "e2", "e4", weight="bf16")
    circuit = toy.output("e3").output("e4").circuit()
    crossed = [
        rule(
            name,
            [
                Element("linear", roles=(role,), keep=True),
                Element("rms_norm", local=local, sibling=True),
            ],
            numerics=IDENTICAL,
            priority=100,
        )
        for name, role, local in (("a", "q", "a2"), ("b", "k", "b2"))
    ]
    with pytest.raises(Cycle, match=r"a over b0\.a1, b0\.a2; b over b0\.b1, b0\.b2"):
        plan(circuit, *SINGLES, *crossed)


def test_ties_of_the_order_go_to_the_lowest_member() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("n1", "rms_norm", "x", "a", weight="bf16").add(
        "n2", "rms_norm", "x", "b", weight="bf16"
    )
    toy.add("o1", "linear", "a", "c", role="o", weight="bf16").output("b").output("c")
    fused = rule("fused", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100)
    assert groups(plan(toy.circuit(), *SINGLES, fused)) == [
        ("embed", ["embed"]),
        ("fused", ["n1", "o1"]),
        ("norm", ["n2"]),
    ]


def test_a_cache_write_runs_before_a_later_read_of_the_cache() -> None:
    toy = Toy().state("kv").add("embed", "embed", "", "x", weight="bf16")
    toy.add("k", "linear", "x", "k", role="k", weight="bf16")
    toy.add("write", "kv_write", "k", "", state={"kv": "update"})
    toy.add("attend", "paged_attention", "x", "a", state={"kv": "read"}).output("a")
    singles = [rule(op, [op]) for op in ("kv_write", "paged_attention")]
    # Without the state, attention (it reads only x) could run before the write.
    late = rule(
        "late", [Element("linear", roles=("k",)), "kv_write"], numerics=IDENTICAL, priority=100
    )
    order = [name for name, _ in groups(plan(toy.circuit(), *SINGLES, *singles, late))]
    assert order == ["embed", "late", "paged_attention"]


def test_the_head_of_a_prefill_is_not_fused_with_the_body() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("norm", "final_norm", "x", "y", rows="s", weight="bf16").output("y").circuit()
    final = rule("final", ["final_norm"])
    both = rule("both", ["embed", "final_norm"], numerics=IDENTICAL, priority=100)
    for mode, fused in (
        ("decode", True),
        ("multi_seq", True),
        ("verify", True),
        ("prefill", False),
    ):
        for rows in (1, 7):
            made = plan(circuit, *SINGLES, final, both, mode=mode, rows=rows)
            assert ("both" in made.rules_used()) is fused, (mode, rows)


def test_rows_per_expert_choice_share_the_token_rows() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("wide", "linear", "x", "u", role="o", rows="n*top_k", weight="bf16")
    circuit = toy.add("act", "relu2", "u", "y", rows="n").output("y").circuit()
    fused = rule("fused", ["linear", "relu2"], numerics=IDENTICAL, priority=100)
    assert "fused" in plan(circuit, *SINGLES, fused, mode="prefill", rows=4).rules_used()


def test_a_later_element_may_read_any_earlier_member() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("norm", "rms_norm", "x", "xn", weight="bf16")
    toy.add("q", "linear", "xn", "q", role="q", weight="bf16").output("q")
    toy.add("k", "linear", "xn", "k", role="k", weight="bf16").output("k")
    pattern = [
        "rms_norm",
        Element("linear", roles=("q",), keep=True),
        Element("linear", roles=("k",)),
    ]
    fused = rule("fused", pattern, numerics=IDENTICAL, priority=100)
    made = plan(toy.circuit(), *SINGLES, fused)
    assert ("fused", ["norm", "q", "k"]) in groups(made)
    assert set(made.fused_edges()) == {"xn"}


def test_independent_groups_run_by_their_lowest_member() -> None:
    toy = Toy()
    for index in range(4):
        toy.add(f"e{index}", "embed", "", f"x{index}", weight="bf16").output(f"x{index}")
    order = [locals_ for _, locals_ in groups(plan(toy.circuit(), *SINGLES))]
    assert order == [["e0"], ["e1"], ["e2"], ["e3"]]


LATE_WRITE = rule(
    "late_write",
    [Element("linear", roles=("k",)), "kv_write"],
    numerics=IDENTICAL,
    priority=100,
)


def test_a_read_of_the_cache_runs_before_a_later_write() -> None:
    """The write's group has the lower member, and must wait for the reader all the same."""
    toy = Toy().state("kv").add("embed", "embed", "", "x", weight="bf16")
    toy.add("k", "linear", "x", "k", role="k", weight="bf16")
    toy.add("attend", "paged_attention", "x", "a", state={"kv": "read"}).output("a")
    toy.add("write", "kv_write", "k", "", state={"kv": "update"})
    made = plan(toy.circuit(), *SINGLES, rule("attend", ["paged_attention"]), LATE_WRITE)
    assert [name for name, _ in groups(made)] == ["embed", "attend", "late_write"]


def test_a_node_without_outputs_runs_before_later_readers_of_its_input() -> None:
    """A snapshot sees the edge as its producer left it, even if a later reader works in place."""
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("k", "linear", "x", "k", role="k", weight="bf16")
    toy.add("snap", "state_snapshot", "x", "")
    toy.add("act", "relu2", "k", "r").add("late", "residual_add", "x r", "y").output("y")
    early = rule("early", ["linear", "relu2", "residual_add"], numerics=IDENTICAL, priority=100)
    singles = (rule("snap", ["state_snapshot"]), rule("relu2", ["relu2"]))
    made = plan(toy.circuit(), *SINGLES, *singles, early)
    assert [name for name, _ in groups(made)] == ["embed", "snap", "early"]
