"""Where a rule is tried: each circuit, mode and row count that it wins, and each shape of it."""

from __future__ import annotations

import dataclasses

import pytest

from metpipe.circuit import Select, Situation, UnknownRule, fuse
from metpipe.circuit.rules import Element
from metpipe.engine.microtest import candidate_of, find_places, refuse_nowhere
from metpipe.errors import ConfigError


def with_rule(candidate, **changes):
    """The candidate with its rule changed."""
    rule = dataclasses.replace(candidate.rule, **changes)
    rules = dataclasses.replace(candidate.rules, rules={**candidate.rules.rules, rule.id: rule})
    return dataclasses.replace(candidate, rule=rule, rules=rules)


def test_a_place_holds_one_group_and_the_same_nodes_one_by_one(sets, circuits):
    for place in find_places(candidate_of(sets, "norm_rope_write"), circuits):
        (group,) = place.fused.groups
        assert group.rule.id == "norm_rope_write"
        chain = [node for one in place.chain.groups for node in one.nodes]
        assert sorted(chain) == sorted(group.nodes)
        assert all(one.rule.numerics.kind == "reference" for one in place.chain.groups)


def test_a_rule_is_tried_only_in_circuits_that_have_its_chain(sets, circuits):
    places = find_places(candidate_of(sets, "norm_rope_write"), circuits)
    names = {"normed", "normed, biased", "recurrent", "experts"}
    assert {place.circuit_name for place in places} == names
    places = find_places(candidate_of(sets, "router_top_k"), circuits)
    assert {place.circuit_name for place in places} == {"experts"}


def test_rows_and_modes_follow_the_rule(sets, circuits):
    candidate = with_rule(
        candidate_of(sets, "linear_add"), rows=(3, 9), modes=frozenset({"verify"})
    )
    places = find_places(candidate, circuits)
    assert {place.rows for place in places} == {3, 5, 9}
    assert {place.modes for place in places} == {("verify",)}


def test_each_shape_that_the_rule_takes_is_tried(sets, circuits):
    places = find_places(candidate_of(sets, "linear_add"), {"plain": circuits["plain"]})
    roles = {place.nodes[0].role for place in places}
    assert roles == {"o", "down"}


def test_modes_with_the_same_work_are_one_place_that_names_them(sets, circuits):
    places = find_places(candidate_of(sets, "linear_add"), {"h": circuits["recurrent"]})
    main = ("decode", "multi_seq", "verify", "verify_batch", "prefill")
    drafts = ("decode", "multi_seq", "verify", "verify_batch", "draft", "prefill")
    assert {place.nodes[0].role: place.modes for place in places} == {
        "gdn_out": main, "o": drafts, "down": drafts,
    }  # fmt: skip
    plain = find_places(candidate_of(sets, "linear_add"), {"plain": circuits["plain"]})
    assert {place.modes for place in plain} == {main}
    writes = find_places(candidate_of(sets, "rope_write"), {"plain": circuits["plain"]})
    assert {place.mode for place in writes if place.rows == 5} == {
        "decode",
        "verify",
        "verify_batch",
    }


def test_a_head_in_a_prefill_reads_all_rows_and_writes_one(sets, circuits):
    places = find_places(candidate_of(sets, "final_norm"), {"plain": circuits["plain"]})
    prefill = [place for place in places if "prefill" in place.modes and place.rows == 17]
    (place,) = prefill
    assert [place.rows_of(edge) for edge in (*place.inputs, *place.outputs)] == [17, 1]


def test_outputs_are_what_both_sides_store(sets, circuits):
    places = find_places(candidate_of(sets, "norm_rope_write"), {"normed": circuits["normed"]})
    assert {place.outputs for place in places} == {("l0.attn.qr",)}
    assert {place.inputs for place in places} == {("l0.attn.q", "l0.attn.k", "l0.attn.v")}
    assert {place.written_states for place in places} == {("l0.attn.k", "l0.attn.v")}


def test_every_shipped_rule_is_tried_wherever_a_plan_uses_it(sets, circuits):
    """A rule that a plan with all rules wins somewhere must have a place in that circuit."""
    for name, circuit in circuits.items():
        situation = Situation(
            mode="decode", rows=1, kernels=frozenset(sets.builtin.functions), select=Select.all()
        )
        for rule_id in fuse(circuit, sets.rules, situation).rules_used():
            places = find_places(candidate_of(sets, rule_id), {name: circuit})
            assert any(place.rows == 1 and "decode" in place.modes for place in places), rule_id


def test_an_unknown_rule_is_answered_with_near_ones(sets):
    with pytest.raises(
        UnknownRule, match=r"rule=add_rms_nrom: no rule .* did you mean add_rms_nor"
    ):
        candidate_of(sets, "add_rms_nrom")


def test_a_rule_that_applies_nowhere_says_where_it_was_looked_for(sets, circuits):
    candidate = with_rule(
        candidate_of(sets, "silu_mul"), pattern=(Element("gelu_tanh_mul"),), rows=(1, 4)
    )
    assert find_places(candidate, circuits) == ()
    error = refuse_nowhere(candidate, circuits)
    assert isinstance(error, ConfigError)
    for part in ("rule silu_mul", "gelu_tanh_mul", "prefill", "1, 2, 3, 4 rows", "plain", "free"):
        assert part in str(error)


def test_what_keeps_a_rule_from_applying_is_named(sets, circuits):
    candidate = with_rule(candidate_of(sets, "qkv"), requires=frozenset({"tensor_cores"}))
    assert find_places(candidate, circuits) == ()
    assert "the capability tensor_cores is missing" in str(refuse_nowhere(candidate, circuits))


def test_a_definition_is_a_reference_rule_of_the_built_in_set_only(sets):
    assert candidate_of(sets, "linear").is_definition
    assert not candidate_of(sets, "qkv").is_definition
    theirs = dataclasses.replace(sets, overlay=sets.builtin, overlay_rules=sets.rules)
    assert not candidate_of(theirs, "linear").is_definition
