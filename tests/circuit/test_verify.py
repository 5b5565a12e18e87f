"""The verifier: one failing circuit for each check, and none for a legal one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from metpipe.circuit import BadCircuit, BlockInstance, Circuit, verify
from metpipe.circuit.verify import CHECKS

from .families import FAMILIES, circuit
from .toy import Toy


def legal() -> Toy:
    toy = Toy().state("h", "recurrent").state("kv")
    toy.add("embed", "embed", "", "x", weight="bf16")
    toy.add("norm", "rms_norm", "x", "xn", weight="bf16", params={"weight_form": "plain"})
    toy.add("up", "linear", "xn", "u", role="gate_up", weight="bf16", dim=16)
    toy.add("act", "silu_mul", "u", "a", state={"h": "update"})
    return toy.add("add", "residual_add", "x a", "y", state={"kv": "read"}).output("y", "logits")


def node(made: Circuit, local: str, **changes: object) -> Circuit:
    nodes = tuple(
        replace(entry, **changes) if entry.local == local else entry for entry in made.nodes
    )
    return replace(made, nodes=nodes)


def edge(made: Circuit, edge_id: str, **changes: object) -> Circuit:
    edges = {**made.edges, edge_id: replace(made.edges[edge_id], **changes)}
    return replace(made, edges=edges)


def state(made: Circuit, state_id: str, **changes: object) -> Circuit:
    states = {**made.states, state_id: replace(made.states[state_id], **changes)}
    return replace(made, states=states)


def unread(made: Circuit) -> Circuit:
    return edge(made, "y", is_output=False, buffer=None)


def integers(made: Circuit) -> Circuit:
    return edge(made, "x", format="i32")


def block(made: Circuit) -> Circuit:
    first = made.blocks[0]
    return replace(made, blocks=(replace(first, last=2), replace(first, first=1)))


def moved(made: Circuit) -> Circuit:
    blocks = (BlockInstance("b9", "b9", None, None, "main", 0, 5, None, None),)
    return replace(made, blocks=blocks)


Break = Callable[[Circuit], Circuit]

BROKEN: list[tuple[str, Break, str]] = [
    ("ops are known", lambda c: node(c, "act", op="silu"), "unknown op 'silu'"),
    ("linears have known roles", lambda c: node(c, "up", role="upp"), "unknown role 'upp'"),
    ("linears have known roles", lambda c: node(c, "up", role=None), "unknown role None"),
    ("linears have known roles", lambda c: node(c, "act", role="q"), "only linear has roles"),
    ("ops read and write as many edges as they may", lambda c: node(c, "add", inputs=("x",)),
     r"b0\.add \(residual_add\) reads 1 edges, and may 2"),
    ("nodes have their own names", lambda c: node(c, "act", id="b0.up"), "2 nodes are named b0.up"),
    ("nodes have their own names", lambda c: node(c, "act", index=7), "says it is node 7"),
    ("edges have edge formats", lambda c: edge(c, "u", format="fp9"), "no format is spelled 'fp9'"),
    ("edges have edge formats", lambda c: edge(c, "u", format="fp8/channel"), "weights only"),
    ("weights have formats", lambda c: node(c, "up", weight_format="int4"), "spelled 'int4'"),
    ("edges are written before they are read", lambda c: node(c, "norm", inputs=("a",)),
     "b0.norm reads a, which no earlier node writes"),
    ("edges are written before they are read", lambda c: node(c, "act", outputs=("x",)),
     "writes x, which an earlier node wrote"),
    ("edges know their ends", lambda c: edge(c, "u", producer=0), "does not know its producer"),
    ("edges know their ends", lambda c: edge(c, "u", consumers=(4,)), "does not know its readers"),
    ("edges are read", unread, "nobody reads the edge y"),
    ("edges have sizes", lambda c: edge(c, "u", rows="top_k"), "mention neither n nor s"),
    ("edges have sizes", lambda c: edge(c, "u", dim=0), "the edge u is 0 wide"),
    ("weights are bound", lambda c: node(c, "up", binding=(), binding_rows=()), "binds no module"),
    ("weights are bound", lambda c: node(c, "act", binding=("m",), binding_rows=(8,)),
     "binds m and reads no weight"),
    ("weights are bound", lambda c: node(c, "act", has_bias=True), "has a bias and binds no"),
    ("weights are bound", lambda c: node(c, "up", binding_rows=(9,)), "give 9 rows"),
    ("norms state the form of their weight", lambda c: node(c, "norm", params={}),
     "must state weight_form as one of none, one_plus, plain; it states None"),
    ("ops read formats that they accept", integers, "reads x, which holds integers"),
    ("ops read formats that they accept", lambda c: edge(c, "u", format="fp8/token"),
     "reads u as fp8/token"),
    ("widths fit", lambda c: edge(c, "a", dim=9), r"turns widths \[16\] into \[9\]"),
    ("layers have known kinds", lambda c: replace(c, layer_kinds=("attention",)), "'attention'"),
    ("buffers are bound once", lambda c: edge(c, "y", buffer="logit"), "unknown buffer 'logit'"),
    ("buffers are bound once", lambda c: edge(c, "a", is_output=True, buffer="logits"),
     "both bound to the buffer 'logits'"),
    ("buffers are bound once", lambda c: edge(c, "a", buffer="tokens"), "no declared output"),
    ("states are declared whole", lambda c: state(c, "h", kind="ring"), "unknown kind 'ring'"),
    ("states are declared whole", lambda c: state(c, "h", lifetime="day"), "lifetime 'day'"),
    ("states are declared whole", lambda c: state(c, "h", format="fp4"), "stored as 'fp4'"),
    ("states are declared whole", lambda c: state(c, "h", format="{dtype}"), "no serve flag"),
    ("states are declared whole", lambda c: state(c, "h", verify=None), "recurrent states"),
    ("states are declared whole", lambda c: state(c, "kv", verify="h_steps"), "recurrent states"),
    ("states are declared whole", lambda c: state(c, "kv", copies="l0.h"), "copies l0.h"),
    ("states are touched as their kind allows", lambda c: node(c, "add", state={"kv": "snapshot"}),
     "b0.add may not snapshot the paged_kv state kv"),
    ("states are touched as their kind allows", lambda c: node(c, "add", state={"zz": "read"}),
     "undeclared state zz"),
    ("nodes lie in their block", block, "both have node 1"),
    ("nodes lie in their block", moved, "in no block of that name"),
]  # fmt: skip


def test_a_legal_circuit_passes() -> None:
    verify(legal().circuit())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_shipped_families_pass(model_type: str) -> None:
    verify(circuit(model_type))


@pytest.mark.parametrize(("check", "broken", "message"), BROKEN, ids=[row[2] for row in BROKEN])
def test_each_check_fails_on_its_own_circuit(check: str, broken: Break, message: str) -> None:
    with pytest.raises(BadCircuit, match=message) as caught:
        verify(broken(legal().circuit()))
    assert str(caught.value).endswith(f"(check: {check})")


def test_every_check_has_a_circuit_that_fails_it() -> None:
    assert {row[0] for row in BROKEN} == set(CHECKS)


def test_a_weightless_norm_binds_nothing() -> None:
    made = legal().circuit()
    verify(node(made, "norm", params={"weight_form": "none"}, binding=(), binding_rows=()))
    with pytest.raises(BadCircuit, match="reads no weight"):
        verify(node(made, "norm", params={"weight_form": "none"}))
