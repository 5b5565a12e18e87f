"""The fuser over random graphs and random rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metpipe.circuit import Circuit, Cycle, Element, Plan, Rule, Select
from metpipe.circuit.wiring import predecessors

from .toy import IDENTICAL, Toy, patiently, plan, rule

OPS = ("rms_norm", "linear", "relu2", "residual_add")
ONES = [rule(op, [op]) for op in ("embed", *OPS)]


@st.composite
def circuits(draw: st.DrawFn) -> Circuit:
    """An embed and up to 16 random ops over earlier edges, some of them touching a state."""
    toy = Toy().state("kv").add("n0", "embed", "", "e0", weight="bf16")
    count = draw(st.integers(2, 16))
    for index in range(1, count):
        if index == count // 2:
            toy.block("b1")
        op = draw(st.sampled_from(OPS))
        sources = draw(st.lists(st.integers(0, index - 1), min_size=2, max_size=2))
        reads = [f"e{source}" for source in sources[: 2 if op == "residual_add" else 1]]
        weight = "bf16" if op in ("rms_norm", "linear") else None
        access = draw(st.sampled_from([None, None, "read", "update"]))
        toy.add(
            f"n{index}",
            op,
            " ".join(reads),
            f"e{index}",
            role="o" if op == "linear" else None,
            weight=weight,
            state={"kv": access} if access else None,
        )
    for edge in [edge.id for edge in toy.edges.values() if not edge.consumers]:
        toy.output(edge)
    return toy.circuit()


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    """Reference rules for every op, and some random chains."""
    chains = draw(
        st.lists(
            st.lists(
                st.builds(
                    Element,
                    op=st.sampled_from(OPS),
                    keep=st.booleans(),
                    stored=st.booleans(),
                    sibling=st.booleans(),
                ),
                min_size=2,
                max_size=4,
            ),
            max_size=5,
        )
    )
    fused = [
        rule(f"r{index}", pattern, numerics=IDENTICAL, priority=draw(st.integers(11, 14)))
        for index, pattern in enumerate(chains)
    ]
    return [*ONES, *fused]


def fused(circuit: Circuit, found: list[Rule], **situation: object) -> Plan | None:
    try:
        return plan(circuit, *found, **situation)
    except Cycle:
        return None


@patiently
@given(circuits(), rules())
def test_each_node_is_in_exactly_one_group(circuit: Circuit, found: list[Rule]) -> None:
    made = fused(circuit, found)
    if made is not None:
        taken = sorted(node for group in made.groups for node in group.nodes)
        assert taken == list(range(len(circuit.nodes)))


@patiently
@given(circuits(), rules())
def test_the_order_respects_data_and_state(circuit: Circuit, found: list[Rule]) -> None:
    made = fused(circuit, found)
    if made is None:
        return
    place = {node: group.index for group in made.groups for node in group.nodes}
    for node, before in enumerate(predecessors(circuit, "main")):
        assert all(place[earlier] <= place[node] for earlier in before)
    touching = [node for node in circuit.nodes if node.state]
    for first, then in ((a, b) for a in touching for b in touching if a.index < b.index):
        if "update" in (first.state["kv"], then.state["kv"]):
            assert place[first.index] <= place[then.index]


@patiently
@given(circuits(), rules(), st.randoms())
def test_the_file_order_of_rules_does_not_matter(
    circuit: Circuit, found: list[Rule], shuffler: object
) -> None:
    shuffled = list(found)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = fused(circuit, found), fused(circuit, shuffled)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.digest() == other.digest()


@patiently
@given(circuits(), rules())
def test_a_fused_edge_never_leaves_its_group(circuit: Circuit, found: list[Rule]) -> None:
    made = fused(circuit, found)
    if made is None:
        return
    place = {node: group.index for group in made.groups for node in group.nodes}
    for edge in made.fused_edges():
        held = circuit.edges[edge]
        assert not held.is_output
        assert {place[node] for node in (held.producer, *held.consumers) if node is not None} == {
            place[held.producer or 0]
        }


@patiently
@given(circuits(), rules())
def test_the_reference_is_one_group_a_node(circuit: Circuit, found: list[Rule]) -> None:
    made = fused(circuit, found, select=Select.reference())
    assert made is not None
    assert [group.nodes for group in made.groups] == [(n,) for n in range(len(circuit.nodes))]
    assert made.materialized == set(circuit.edges)


@patiently
@given(circuits(), rules())
def test_groups_are_legal_without_each_other(circuit: Circuit, found: list[Rule]) -> None:
    """No path leaves a group and comes back: each could run as one launch."""
    made = fused(circuit, found)
    if made is None:
        return
    before = predecessors(circuit, "main")
    for group in made.groups:
        inside, behind = set(group.nodes), set()
        for node in range(len(circuit.nodes)):
            if node not in inside and not before[node].isdisjoint(inside | behind):
                behind.add(node)
            assert node not in inside or before[node].isdisjoint(behind)
