"""A plan of ops that no kernel covers: each op on its own, every edge in memory.

It launches nothing. It bounds the activations of kernels that somebody may write: a kernel that
fuses ops keeps fewer edges.
"""

from __future__ import annotations

from metpipe.circuit import Circuit, Element, Kernel, Numerics, Plan, Rule, RuleSet, Situation, fuse
from metpipe.circuit.vocabulary import MODES

__all__ = ["unplanned"]

SOURCE = "no kernel set"
WIDEST = 1 << 62


def unplanned(circuit: Circuit, mode: str, rows: int) -> Plan:
    """One group per node, at any row count."""
    kinds = {(node.op, node.weight_format) for node in circuit.nodes}
    rules = {rule.id: rule for rule in (_rule(op, weight) for op, weight in kinds)}
    kernels = frozenset(name for rule in rules.values() for name in rule.kernel_names)
    return fuse(circuit, RuleSet(SOURCE, rules), Situation(mode, rows, kernels))


def _rule(op: str, weight: str | None) -> Rule:
    name = f"{op} {weight}"
    return Rule(
        id=name,
        pattern=(Element(op, weight=weight),),
        kernels=(Kernel("none", name),),
        rows=(1, WIDEST),
        modes=frozenset(MODES),
        numerics=Numerics("reference"),
        priority=0,
        cite=SOURCE,
        source=SOURCE,
    )
