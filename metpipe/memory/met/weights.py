"""Stored weights and their derived copies, node by node (sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from metpipe.circuit import Circuit, Node, tensor_bytes, weight_bytes, weight_matrix
from metpipe.circuit.vocabulary import OPS
from metpipe.errors import ConfigError
from metpipe.memory.met.copies import CopyRule, Weight, copies_of
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.served import head_format, served_format
from metpipe.memory.report import CopyBytes, NodeBytes

__all__ = ["Weights", "declared_head", "weights_of"]


@dataclass(frozen=True, slots=True)
class Weights:
    """What the nodes store and copy; `leaked` is part of `derived`. Outside bytes are not here.

    `derived_most` differs from `derived` where no rule speaks of the family: it is then the most
    that the rules of another one would make of the same weights.
    """

    nodes: tuple[NodeBytes, ...]
    stored: int
    derived: int
    leaked: int
    derived_most: int


def weights_of(
    circuit: Circuit,
    flags: MetFlags,
    rules: tuple[CopyRule, ...],
    settings: Mapping[str, str],
) -> Weights:
    """The weights of a circuit whose nodes carry declared formats.

    Raises:
        ConfigError: a dim that a weight needs is absent, a weight has no size in its format.
    """
    nodes = tuple(_rows(circuit, flags, rules, settings))
    families = {arch for rule in rules for arch in rule.arch}
    others = () if circuit.arch in families else families
    copies = [copy for node in nodes for copy in node.derived]
    derived = _derived(nodes)
    elsewhere = (_rows(replace(circuit, arch=arch), flags, rules, settings) for arch in others)
    return Weights(
        nodes=nodes,
        stored=sum(node.stored for node in nodes),
        derived=derived,
        leaked=sum(copy.bytes for copy in copies if copy.leaked),
        derived_most=max(map(_derived, elsewhere), default=derived),
    )


def _derived(nodes: Iterable[NodeBytes]) -> int:
    return sum(copy.bytes for node in nodes for copy in node.derived)


def declared_head(circuit: Circuit) -> str:
    """The declared format of the target's head.

    Raises:
        ConfigError: the circuit has none.
    """
    for node in circuit.nodes:
        if node.op == "lm_head" and node.section == "main":
            return node.weight_format or "bf16"
    raise ConfigError(f"the circuit {circuit.arch} has no head, so nothing says its format")


def _rows(
    circuit: Circuit,
    flags: MetFlags,
    rules: tuple[CopyRule, ...],
    settings: Mapping[str, str],
) -> Iterator[NodeBytes]:
    head = head_format(declared_head(circuit), flags)
    bound: set[tuple[str, ...]] = set()
    for node in circuit.nodes:
        stored = 0
        copies: tuple[CopyBytes, ...] = ()
        if OPS[node.op].weight == "table":
            stored = _table(circuit, node)
        elif OPS[node.op].weight == "matrix":
            weight = _weight(circuit, node, served_format(node, flags, head))
            stored = _stored(weight, node, bound)
            copies = _copies(weight, rules, settings)
        if node.binding:
            bound.add(node.binding)
        yield NodeBytes(node.id, node.op, node.layer, stored, copies)


def _table(circuit: Circuit, node: Node) -> int:
    """The draft reads the target's table."""
    if node.section == "draft":
        return 0
    edge = circuit.edges[node.outputs[0]]
    return tensor_bytes(edge.format, _dim(circuit, "vocab", node), edge.dim)


def _weight(circuit: Circuit, node: Node, served: str) -> Weight:
    out, k = weight_matrix(circuit, node)
    return Weight(
        arch=circuit.arch,
        section=node.section,
        op=node.op if node.role is None else f"{node.op}:{node.role}",
        stored=node.weight_format or "bf16",
        served=served,
        out=out,
        k=k,
        number=_dim(circuit, "experts", node) if OPS[node.op].per_expert else 1,
    )


def _stored(weight: Weight, node: Node, bound: set[tuple[str, ...]]) -> int:
    """Nothing again where an earlier node is bound to the same modules, nothing for a draft's head.

    A head that is tied to the embedding is bound to its table.
    """
    if node.binding in bound or (node.op == "lm_head" and node.section == "draft"):
        return 0
    return weight_bytes(weight.stored, weight.out, weight.k) * weight.number


def _copies(
    weight: Weight, rules: tuple[CopyRule, ...], settings: Mapping[str, str]
) -> tuple[CopyBytes, ...]:
    found = copies_of(weight, rules, settings)
    return tuple(CopyBytes(rule.id, size, rule.leaked) for rule, size in found)


def _dim(circuit: Circuit, name: str, node: Node) -> int:
    if name not in circuit.dims:
        raise ConfigError(f"{node.id}: its bytes need the dim {name!r}, which the model lacks")
    return circuit.dims[name]
