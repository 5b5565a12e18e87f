"""Outside bytes: tensors of a checkpoint that no weight node binds (section 9).

Norms, convolutions, gates' constants, a vision tower. Only names and sizes are read, which the
headers of the files give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from metpipe.circuit import Circuit
from metpipe.circuit.vocabulary import OPS

__all__ = ["outside_bytes"]

Tree = dict[str, "Tree"]
"""A segment of a module's name -> what may follow it."""
END = "."
"""In a tree: a binding may end here. No segment is spelled so."""


def outside_bytes(circuit: Circuit, stored: Mapping[str, int]) -> int:
    """The sum over `stored` (tensor name -> bytes) of what no weight node binds.

    A tensor is inside when a binding and its module agree on every segment of the shorter one: the
    module is the binding, lies in it, or holds it. `*` in a binding agrees with any segment.
    """
    bindings = _tree(_bindings(circuit))
    return sum(size for name, size in stored.items() if not _is_inside(name, bindings))


def _bindings(circuit: Circuit) -> Iterator[str]:
    for node in circuit.nodes:
        if OPS[node.op].weight in ("matrix", "table"):
            yield from node.binding


def _tree(bindings: Iterable[str]) -> Tree:
    root: Tree = {}
    for binding in bindings:
        branch = root
        for segment in binding.split("."):
            branch = branch.setdefault(segment, {})
        branch[END] = {}
    return root


def _is_inside(tensor: str, bindings: Tree) -> bool:
    module = tensor.split(".")[:-1]
    return bool(module) and _agrees(module, bindings)


def _agrees(segments: list[str], branch: Tree) -> bool:
    if not segments or END in branch:
        return True
    return any(_agrees(segments[1:], branch[key]) for key in (segments[0], "*") if key in branch)
