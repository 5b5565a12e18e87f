"""What holds for every family that is planned: tensors, keys, rules."""

from __future__ import annotations

from collections import Counter

import pytest

from metpipe.circuit import RefusedConfig, Select, Situation, fuse, is_outside, node_weight_shapes

from .planned_families import TENSORS, TINY, changed, circuit_of
from .toy import every_kernel, rule, rule_set


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_of_the_checkpoint_is_bound_once_with_its_shape(name: str) -> None:
    """Of random models as transformers 5.24 saves them, but for what is outside by intent."""
    made, stored = circuit_of(TINY[name]), TENSORS[name]
    listed = [
        (tensor, list(shape))
        for node in made.nodes
        if node.section == "main"
        for tensor, shape in node_weight_shapes(made, node, stored)
    ]
    inside = {tensor: shape for tensor, shape in stored.items() if not is_outside(made, tensor)}
    assert dict(listed) == inside
    counts = Counter(tensor for tensor, _ in listed)
    table = next(node.binding[0] for node in made.nodes if node.op == "embed")
    twice = {f"{table}.weight"} if made.dims["tie"] else set()
    assert {tensor for tensor, count in counts.items() if count > 1} == twice


EXPERTS = ("n_routed_experts", "num_local_experts")
WITH_EXPERTS = [name for name in TINY if circuit_of(TINY[name]).dims.get("experts")]


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_how_many_experts_there_are_is_never_guessed(name: str) -> None:
    config = TINY[name].get("text_config", TINY[name])
    stated = next((key for key in EXPERTS if key in config), None)
    if stated is None:  # Gemma 4: without the key there are none
        without = circuit_of(changed(name, num_experts=..., enable_moe_block=False))
        assert without.dims["experts"] == 0
        return
    with pytest.raises(RefusedConfig, match=f"the key '{stated}' is missing; the circuit needs"):
        circuit_of(changed(name, **{stated: ...}))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    ("mode", "rows"), [("decode", 1), ("multi_seq", 5), ("prefill", 33), ("draft", 2)]
)
def test_a_rule_per_op_covers_every_mode(name: str, mode: str, rows: int) -> None:
    made = circuit_of(TINY[name])
    section = "draft" if mode == "draft" else "main"
    expected = sum(node.section == section for node in made.nodes)
    if not expected:
        assert mode == "draft"
        assert not any(state.section == "draft" for state in made.states.values())
        return
    rules = rule_set(*(rule(op, [op], modes=[mode]) for op in {node.op for node in made.nodes}))
    plan = fuse(made, rules, Situation(mode, rows, every_kernel(rules), select=Select.all()))
    assert len(plan.groups) == expected


@pytest.mark.parametrize("name", TINY)
def test_an_unclassified_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(RefusedConfig, match="the key 'no_such_key' is not classified by"):
        circuit_of(changed(name, no_such_key=1))


@pytest.mark.parametrize("name", TINY)
def test_a_state_is_written_before_it_is_read(name: str) -> None:
    made = circuit_of(TINY[name])
    written: set[str] = set()
    for node in made.nodes:
        for state, access in node.state.items():
            assert access != "read" or state in written, f"{node.id} reads {state}"
            written.add(state)
    assert written == set(made.states)
