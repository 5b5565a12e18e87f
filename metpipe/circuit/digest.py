"""Digests of plans and rule files. A plan's moves exactly when what runs moves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from metpipe.circuit.ir import Node
from metpipe.circuit.rules import Kernel

if TYPE_CHECKING:
    from metpipe.circuit.plan import Group, Plan

__all__ = ["plan_digest", "plan_text", "plans_digest", "rules_digest"]

SCHEMA = 1


def plan_digest(plan: Plan) -> str:
    """Hex SHA-256 of the plan's canonical text. Rule ids, priorities and cites are not in it."""
    return _sha256(plan_text(plan))


def plans_digest(digests: Iterable[str]) -> str:
    """Hex SHA-256 over digests, each followed by a newline, in order."""
    return _sha256("".join(f"{digest}\n" for digest in digests))


def rules_digest(text: str) -> str:
    """Hex SHA-256 of a rule file's text, comments included."""
    return _sha256(text)


def plan_text(plan: Plan) -> str:
    """The canonical text of a plan, one record a line."""
    return "".join(f"{line}\n" for line in _lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"metpipe-plan {SCHEMA}"
    yield f"plan {plan.circuit.arch} {plan.mode} {plan.rows}"
    if plan.table is not None:
        yield f"table {plan.table.text}"
    for group in plan.groups:
        yield from _group_lines(plan, group)
    for node in plan.circuit.nodes:
        if node.section == plan.section:
            yield _node_line(node)
    owner = {
        edge: group.index
        for group in plan.groups
        for node in group.nodes
        for edge in plan.circuit.nodes[node].outputs
    }
    for edge_id, stored in plan.stored.items():
        edge = plan.circuit.edges[edge_id]
        state = "M" if edge_id in plan.materialized else f"F{owner[edge_id]}"
        yield f"edge {edge_id} {stored} {edge.rows} {edge.dim_expr}={edge.dim} {state}"


def _node_line(node: Node) -> str:
    params = json.dumps(dict(node.params), sort_keys=True, separators=(",", ":"))
    role = f":{node.role}" if node.role else ""
    bias = "+bias" if node.has_bias else ""
    return f"node {node.id} {node.op}{role} weight={node.weight_format or '-'}{bias} {params}"


def _group_lines(plan: Plan, group: Group) -> Iterator[str]:
    rule = group.rule
    kernels = " ".join(_kernel(kernel) for kernel in rule.kernels)
    nodes = ",".join(plan.circuit.nodes[node].id for node in group.nodes)
    yield (
        f"group {group.index} [{kernels}] repeat={rule.repeat} copies={rule.copies or '-'} "
        f"emitter={rule.emitter or '-'} numerics={rule.numerics.text} nodes={nodes}"
    )
    if plan.table is None:
        return
    for run in plan.table.runs if rule.runs else ():
        selector = plan.table.selector(run, rule.runs)
        assert selector is not None
        launches = " ".join(f"{_kernel(kernel)}*{how}" for kernel, how in selector.launches)
        yield f"run {run.text} [{launches}] copies={selector.copies or '-'}"


def _kernel(kernel: Kernel) -> str:
    args = json.dumps(dict(kernel.args), sort_keys=True, separators=(",", ":"))
    return f"{kernel.name}{args}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
