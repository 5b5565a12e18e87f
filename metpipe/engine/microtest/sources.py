"""Whether every argument of a rule can be had from the group it took, before it is bound."""

from __future__ import annotations

from metpipe.circuit import Group, Node, Plan
from metpipe.circuit.sources import sources_in
from metpipe.errors import ConfigError

__all__ = ["refuse_unbindable"]


def refuse_unbindable(plan: Plan) -> None:
    """Refuse the first argument that names something its node, the circuit or the step lacks.

    Raises:
        ConfigError: naming file, rule, kernel, argument and what there is instead.
    """
    for group in plan.groups:
        for kernel in group.rule.kernels:
            for name, source in kernel.args.items():
                for text in sources_in(source):
                    problem = _problem(plan, group, text)
                    if problem is not None:
                        raise ConfigError(
                            f"{group.rule.source}, rule {group.rule.id}: args.{name} of the kernel "
                            f"{kernel.name} is {text!r}, and {problem}"
                        )


def _problem(plan: Plan, group: Group, text: str) -> str | None:
    head, _, rest = text.partition(".")
    match head:
        case "step":
            return None
        case "dim":
            return _absent(f"the dims of {plan.circuit.arch}", rest, plan.circuit.dims)
        case "workspace":
            return "workspaces are planned but not handed to kernels in this version"
    node = plan.circuit.nodes[group.nodes[int(head)]]
    return _problem_of_node(plan, node, rest)


def _problem_of_node(plan: Plan, node: Node, what: str) -> str | None:
    kind, _, name = what.partition(".")
    where = f"element {node.local} ({node.op})"
    match kind:
        case "in" | "out":
            return _problem_of_edge(
                plan, where, kind, node.inputs if kind == "in" else node.outputs, name
            )
        case "weight" if not node.binding:
            return f"{where} reads no weight"
        case "param":
            return _absent(f"the params of {where}", name, node.params)
        case "rope" if "rope" not in node.params:
            return f"{where} turns no positions"
        case "state":
            held = [plan.circuit.states[state].local for state in node.state]
            return _absent(f"the states of {where}", name, held)
        case "tensor":
            return "extra tensors are not handed to kernels in this version"
    return None


def _problem_of_edge(
    plan: Plan, where: str, kind: str, edges: tuple[str, ...], number: str
) -> str | None:
    if int(number) >= len(edges):
        return f"{where} has {len(edges)} {'inputs' if kind == 'in' else 'outputs'}"
    if edges[int(number)] not in plan.materialized:
        return (
            f"the edge {edges[int(number)]} stays inside the group, so it has no memory; put "
            "`stored = true` on the element that writes it, or leave the argument out"
        )
    return None


def _absent(whole: str, name: str, names: object) -> str | None:
    known = list(names)  # type: ignore[call-overload]
    return None if name in known else f"{whole} are {', '.join(known) or 'none'}"
