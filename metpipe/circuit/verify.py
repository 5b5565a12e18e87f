"""What a legal circuit is, as a table of checks; the first one that fails is raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from metpipe.circuit.dims import parse_expr
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.formats import element_bytes, parse_format
from metpipe.circuit.ir import Circuit, Node
from metpipe.circuit.vocabulary import (
    BUFFERS,
    KEYED_FORMATS,
    LAYER_KINDS,
    LIFETIMES,
    LINEAR_ROLES,
    NORMS,
    OPS,
    READS_INTEGERS,
    STATE_ACCESS,
    VERIFY_KINDS,
    WEIGHT_FORMS,
)
from metpipe.errors import ConfigError

__all__ = ["CHECKS", "verify"]

Problems = Iterator[str]


def verify(circuit: Circuit) -> None:
    """Check a circuit against every row of CHECKS.

    Raises:
        BadCircuit: naming the check that failed first, and what is wrong.
    """
    for name, check in CHECKS.items():
        for problem in check(circuit):
            raise BadCircuit(f"circuit {circuit.arch}: {problem} (check: {name})")


def _ops(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        if node.op not in OPS:
            yield f"{node.id} has the unknown op {node.op!r}"


def _roles(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        if node.op == "linear" and node.role not in LINEAR_ROLES:
            yield f"{node.id} is a linear with the unknown role {node.role!r}"
        if node.op != "linear" and node.role is not None:
            yield f"{node.id} ({node.op}) has a role, and only linear has roles"


def _arity(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        op = OPS[node.op]
        for what, edges, (low, high) in (
            ("reads", node.inputs, op.inputs),
            ("writes", node.outputs, op.outputs),
        ):
            if not low <= len(edges) <= high:
                allowed = str(low) if low == high else f"{low} to {high}"
                yield f"{node.id} ({node.op}) {what} {len(edges)} edges, and may {allowed}"


def _names(circuit: Circuit) -> Problems:
    for node_id, count in Counter(node.id for node in circuit.nodes).items():
        if count > 1:
            yield f"{count} nodes are named {node_id}"
    for index, node in enumerate(circuit.nodes):
        if node.index != index:
            yield f"{node.id} says it is node {node.index}, and it is node {index}"


def _edge_formats(circuit: Circuit) -> Problems:
    for edge in circuit.edges.values():
        problem = _format_problem(edge.format)
        if problem is not None:
            yield f"the edge {edge.id}: {problem}"
        elif parse_format(edge.format).is_weight_only:
            yield f"the edge {edge.id} has {edge.format}, a layout of weights only"


def _weight_formats(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        problem = _format_problem(node.weight_format) if node.weight_format else None
        if problem is not None:
            yield f"the weight of {node.id}: {problem}"


def _format_problem(spelling: str) -> str | None:
    try:
        parse_format(spelling)
    except ConfigError as problem:
        return str(problem)
    return None


def _order(circuit: Circuit) -> Problems:
    written = {edge.id for edge in circuit.edges.values() if edge.producer is None}  # from outside
    for node in circuit.nodes:
        for edge in node.inputs:
            if edge not in written:
                yield f"{node.id} reads {edge}, which no earlier node writes"
        for edge in node.outputs:
            if edge in written:
                yield f"{node.id} writes {edge}, which an earlier node wrote"
            written.add(edge)
    for edge in circuit.edges:
        if edge not in written:
            yield f"no node writes the edge {edge}"


def _ends(circuit: Circuit) -> Problems:
    readers: dict[str, list[int]] = {edge: [] for edge in circuit.edges}
    for node in circuit.nodes:
        for edge in dict.fromkeys(node.inputs):
            readers[edge].append(node.index)
        for edge in node.outputs:
            if circuit.edges[edge].producer != node.index:
                yield f"the edge {edge} does not know its producer {node.id}"
    for edge_id, found in readers.items():
        if tuple(found) != circuit.edges[edge_id].consumers:
            yield f"the edge {edge_id} does not know its readers"


def _readers(circuit: Circuit) -> Problems:
    for edge in circuit.edges.values():
        if not edge.consumers and not edge.is_output:
            yield f"nobody reads the edge {edge.id}, and it is no declared output"


def _sizes(circuit: Circuit) -> Problems:
    for edge in circuit.edges.values():
        if not parse_expr(edge.rows, edge.id).names & {"n", "s"}:
            yield f"the rows {edge.rows!r} of {edge.id} mention neither n nor s"
        if edge.dim < 1:
            yield f"the edge {edge.id} is {edge.dim} wide"


def _bindings(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        kind = OPS[node.op].weight
        weightless = node.params.get("weight_form") == "none"
        if kind in ("matrix", "table", "vector") and not node.binding and not weightless:
            yield f"{node.id} ({node.op}) reads a weight and binds no module"
        if node.binding and (kind == "none" or weightless):
            yield f"{node.id} ({node.op}) binds {node.binding[0]} and reads no weight"
        if node.has_bias and not node.binding:
            yield f"{node.id} has a bias and binds no module"
        out = sum(circuit.edges[edge].dim for edge in node.outputs)
        out = node.matrix[0] if node.matrix is not None else out
        if node.binding and sum(node.binding_rows) != out:
            rows = sum(node.binding_rows)
            yield f"the modules of {node.id} give {rows} rows, and it needs {out}"
        if node.matrix is not None and OPS[node.op].weight != "matrix":
            yield f"{node.id} ({node.op}) states the size of a matrix, and it has none"


def _weight_forms(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        form = node.params.get("weight_form")
        if node.op in NORMS and form not in WEIGHT_FORMS:
            yield (
                f"{node.id} ({node.op}) must state weight_form as one of "
                f"{', '.join(sorted(WEIGHT_FORMS))}; it states {form!r}"
            )


def _inputs(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        for edge_id in node.inputs:
            fmt = circuit.edges[edge_id].format
            if fmt == "i32" and node.op not in READS_INTEGERS:
                yield f"{node.id} ({node.op}) reads {edge_id}, which holds integers"
            quantised = parse_format(fmt).is_quantised
            if quantised and OPS[node.op].weight != "matrix" and node.op != "copy":
                yield (
                    f"{node.id} ({node.op}) reads {edge_id} as {fmt}; only ops with a matrix, and "
                    "copy, read quantised edges"
                )


def _widths(circuit: Circuit) -> Problems:
    for node in circuit.nodes:
        reads = [circuit.edges[edge].dim for edge in node.inputs]
        writes = [circuit.edges[edge].dim for edge in node.outputs]
        legal = {
            "same": len({*reads, *writes}) == 1,
            "halves": reads == [2 * width for width in writes],
            "pairs": reads == writes,
            "free": True,
        }[OPS[node.op].widths]
        if not legal:
            yield f"{node.id} ({node.op}) turns widths {reads} into {writes}"


def _layer_kinds(circuit: Circuit) -> Problems:
    for layer, kind in enumerate(circuit.layer_kinds):
        if kind not in LAYER_KINDS:
            yield f"layer {layer} has the unknown kind {kind!r}"


def _buffers(circuit: Circuit) -> Problems:
    bound: dict[str, str] = {}
    for edge in circuit.edges.values():
        if edge.buffer is None:
            continue
        if edge.buffer not in BUFFERS:
            yield f"the edge {edge.id} is bound to the unknown buffer {edge.buffer!r}"
        section = _section(circuit, edge.producer)
        other = bound.setdefault(f"{section} {edge.buffer}", edge.id)
        if other != edge.id:
            yield f"{other} and {edge.id} are both bound to the buffer {edge.buffer!r}"
        if not edge.is_output:
            yield f"the edge {edge.id} is bound to {edge.buffer!r} and is no declared output"


def _section(circuit: Circuit, producer: int | None) -> str:
    return "main" if producer is None else circuit.nodes[producer].section


def _states(circuit: Circuit) -> Problems:
    for state in circuit.states.values():
        if state.kind not in STATE_ACCESS:
            yield f"the state {state.id} has the unknown kind {state.kind!r}"
        if state.lifetime not in LIFETIMES:
            yield f"the state {state.id} has the unknown lifetime {state.lifetime!r}"
        if state.format.startswith("{"):
            if state.format not in KEYED_FORMATS:
                keys = " or ".join(sorted(KEYED_FORMATS))
                yield (
                    f"the state {state.id} has the format {state.format!r}, which no serve flag "
                    f"states; write {keys}, or a dtype"
                )
        else:
            try:
                element_bytes(state.format)
            except ConfigError as problem:
                yield f"the state {state.id}: {problem}"
        if (state.kind == "recurrent") != (state.verify in VERIFY_KINDS):
            kinds = " or ".join(sorted(VERIFY_KINDS))
            yield (
                f"the state {state.id} ({state.kind}) has verify = {state.verify!r}; recurrent "
                f"states have {kinds}, and the others none"
            )
        if state.copies is not None and state.copies not in circuit.states:
            yield f"the state {state.id} copies {state.copies}, which is not declared"


def _state_access(circuit: Circuit) -> Problems:
    touched: set[str] = set()
    for node in circuit.nodes:
        for state_id, access in node.state.items():
            if state_id not in circuit.states:
                yield f"{node.id} touches the undeclared state {state_id}"
            elif access not in STATE_ACCESS[circuit.states[state_id].kind]:
                kind = circuit.states[state_id].kind
                yield f"{node.id} may not {access} the {kind} state {state_id}"
            touched.add(state_id)


def _blocks(circuit: Circuit) -> Problems:
    owner: dict[int, str] = {}
    for block in circuit.blocks:
        for index in range(block.first, block.last):
            if index in owner:
                yield f"the blocks {owner[index]} and {block.prefix} both have node {index}"
            owner[index] = block.prefix
    for node in circuit.nodes:
        if not _belongs(node, owner):
            yield f"{node.id} is in no block of that name"


def _belongs(node: Node, owner: dict[int, str]) -> bool:
    return owner.get(node.index) == node.id.rpartition(".")[0]


CHECKS: dict[str, Callable[[Circuit], Problems]] = {
    "ops are known": _ops,
    "linears have known roles": _roles,
    "ops read and write as many edges as they may": _arity,
    "nodes have their own names": _names,
    "edges have edge formats": _edge_formats,
    "weights have formats": _weight_formats,
    "edges are written before they are read": _order,
    "edges know their ends": _ends,
    "edges are read": _readers,
    "edges have sizes": _sizes,
    "weights are bound": _bindings,
    "norms state the form of their weight": _weight_forms,
    "ops read formats that they accept": _inputs,
    "widths fit": _widths,
    "layers have known kinds": _layer_kinds,
    "buffers are bound once": _buffers,
    "states are declared whole": _states,
    "states are touched as their kind allows": _state_access,
    "nodes lie in their block": _blocks,
}
"""What must hold, in the order in which it is looked at: a later check may rely on earlier ones."""
