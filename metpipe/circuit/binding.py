"""Checks that every argument of a plan's kernels can be had, and that every stored edge is written.

A rule file parses without a model; only a plan shows whether `0.in.1` exists on the node it took.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metpipe.circuit.errors import BadArgument
from metpipe.circuit.ir import Node
from metpipe.circuit.plan import Group, Plan
from metpipe.circuit.rules import Kernel
from metpipe.circuit.sources import sources_in

__all__ = ["check_arguments"]


def check_arguments(plan: Plan) -> None:
    """Refuse a plan with an argument that its nodes cannot give, or an output that none receives.

    Raises:
        BadArgument: naming the rule, its file, the kernel, the argument and the node.
    """
    for group in plan.groups:
        nodes = [plan.circuit.nodes[index] for index in group.nodes]
        kernels = _launched(group)
        for kernel in kernels:
            for name, source in kernel.args.items():
                for text in sources_in(source):
                    problem = _problem(plan, nodes, text)
                    if problem is not None:
                        raise _refusal(group, f"kernel {kernel.name}, {name} = {text!r}: {problem}")
        if any(kernel.args for kernel in kernels):
            _check_written(plan, group, nodes, kernels)


def _launched(group: Group) -> list[Kernel]:
    launched = [kernel for run in group.rule.runs for kernel, _ in run.launches]
    return [*group.rule.kernels, *launched]


def _refusal(group: Group, message: str) -> BadArgument:
    return BadArgument(f"{group.rule.source}, rule {group.rule.id}: {message}")


def _problem(plan: Plan, nodes: Sequence[Node], text: str) -> str | None:
    head, _, rest = text.partition(".")
    if head == "dim":
        return None if rest in plan.circuit.dims else _unknown("dim", plan.circuit.dims, "model")
    if not head.isdigit():
        return None
    node = nodes[int(head)]
    what, _, name = rest.partition(".")
    match what:
        case "in" | "out":
            return _edge_problem(plan, node, what, int(name))
        case "weight" | "bias":
            return None if node.binding else f"{node.id} ({node.op}) binds no weight"
        case "param":
            return None if name in node.params else _unknown("param", node.params, node.id)
        case "tensor":
            tensors = [tensor.local for tensor in node.tensors]
            return None if name in tensors else _unknown("tensor", tensors, node.id)
        case "rope":
            return None if node.op == "rope" else f"{node.id} ({node.op}) has no rotary table"
    return _state_problem(plan, node, what, name)


def _state_problem(plan: Plan, node: Node, what: str, name: str) -> str | None:
    states = {plan.circuit.states[state].local: plan.circuit.states[state] for state in node.state}
    if name not in states:
        return _unknown("state", states, node.id)
    if what == "steps" and states[name].kind != "recurrent":
        return (
            f"the state {name} of {node.id} is {states[name].kind}: only recurrent states are kept "
            "row by row"
        )
    return None


def _edge_problem(plan: Plan, node: Node, what: str, index: int) -> str | None:
    edges = node.inputs if what == "in" else node.outputs
    if index >= len(edges):
        verb = "reads" if what == "in" else "writes"
        return f"{node.id} ({node.op}) {verb} {len(edges)} edges"
    if edges[index] not in plan.materialized:
        return (
            f"the edge {edges[index]} lives inside the group and is not in memory; drop the "
            "argument, or set stored on the element that writes it"
        )
    return None


def _check_written(
    plan: Plan, group: Group, nodes: Sequence[Node], kernels: Sequence[Kernel]
) -> None:
    named = {
        text for kernel in kernels for source in kernel.args.values() for text in sources_in(source)
    }
    for position, node in enumerate(nodes):
        for index, edge in enumerate(node.outputs):
            if edge in plan.materialized and f"{position}.out.{index}" not in named:
                raise _refusal(
                    group,
                    f"no argument is {position}.out.{index}, so nothing writes {edge}, which is "
                    "read outside the group",
                )


def _unknown(what: str, known: Collection[str], owner: str) -> str:
    listed = ", ".join(sorted(known)) or "none"
    return f"{owner} has no such {what}; it has {listed}"
