"""A plan as text for people and for golden files: a header, totals, and one line a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from metpipe.circuit.plan import Group, Plan

__all__ = ["golden_name", "golden_text"]


def golden_text(plan: Plan, header: Mapping[str, str] | None = None) -> str:
    """The whole text. `header` lines (checkpoint, settings, levers) stand first, behind `#`."""
    return "".join(f"{line}\n" for line in _lines(plan, header or {}))


def golden_name(plan: Plan, variant: str | None = None) -> str:
    """`<arch>[.variant]-<mode>-n<rows>.txt`."""
    arch = plan.circuit.arch if variant is None else f"{plan.circuit.arch}.{variant}"
    return f"{arch}-{plan.mode}-n{plan.rows}.txt"


def _lines(plan: Plan, header: Mapping[str, str]) -> Iterator[str]:
    for name, value in header.items():
        yield f"# {name}: {value}"
    yield f"digest: {plan.digest()}"
    fused = len(plan.stored) - len(plan.materialized)
    yield (
        f"{plan.mode} at {plan.rows} rows: {len(plan.groups)} groups, {plan.launches(plan.rows)} "
        f"launches, {plan.copies(plan.rows)} copies, {fused} edges fused, "
        f"{len(plan.materialized)} materialised"
    )
    for heading, groups in groupby(plan.groups, key=lambda group: _heading(plan, group)):
        yield f"== {heading}"
        yield from (_group_line(plan, group) for group in groups)


def _heading(plan: Plan, group: Group) -> str:
    node = plan.circuit.nodes[group.nodes[0]]
    return node.block if node.layer is None else f"layer {node.layer} ({node.layer_kind})"


def _group_line(plan: Plan, group: Group) -> str:
    nodes = [plan.circuit.nodes[index] for index in group.nodes]
    locals_ = ",".join(node.local for node in nodes)
    kernels = "+".join(kernel.name for kernel in group.rule.kernels) or "(copy)"
    written = [edge for node in nodes for edge in node.outputs]
    kept = [edge for edge in written if edge in plan.materialized]
    fused = ",".join(edge for edge in written if edge not in plan.materialized)
    writes = ",".join(f"{edge}:{plan.stored[edge]}" for edge in kept)
    repeat = "" if group.rule.repeat == "once" else f" x {group.rule.repeat}"
    return (
        f"{group.index:4} {nodes[0].block} [{locals_}] {kernels}{repeat} "
        f"{group.rule.numerics.kind} rule={group.rule.id} fuses={{{fused}}} writes={{{writes}}}"
    )
