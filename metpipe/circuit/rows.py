"""How many rows an edge or a node has in a step: `n` tokens, of which `s` end a sequence."""

from __future__ import annotations

from functools import lru_cache

from metpipe.circuit.dims import parse_expr
from metpipe.circuit.ir import Circuit, Edge, Node
from metpipe.circuit.vocabulary import MODES

__all__ = ["count_rows", "row_symbol", "step_rows"]


def step_rows(symbol: str, rows: int, mode: str) -> int:
    """The value of `n` or `s` in a step of so many rows: a prefill is one sequence."""
    return 1 if symbol == "s" and MODES[mode].sequences == "1" else rows


def count_rows(circuit: Circuit, edge: Edge, rows: int, mode: str) -> int:
    """Rows of an edge in a step of `rows` rows."""
    if edge.rows in ("n", "s"):
        return step_rows(edge.rows, rows, mode)
    names = {"n": rows, "s": step_rows("s", rows, mode)}
    return parse_expr(edge.rows, "rows").value({**circuit.dims, **names}, edge.id)


def row_symbol(circuit: Circuit, node: Node, mode: str) -> str:
    """Whether a node runs over the step's tokens (`n`) or its sequences (`s`).

    Where every row is a sequence of its own the two are one, and it is `n`. Nodes that differ in
    it cannot share a kernel: a head that reads the last row of a prefill is not a row of the body.
    """
    edge = node.outputs[0] if node.outputs else node.inputs[0]
    symbol = _symbol(circuit.edges[edge].rows)
    return symbol if MODES[mode].sequences == "1" else "n"


@lru_cache(maxsize=256)
def _symbol(rows: str) -> str:
    return "s" if "s" in parse_expr(rows, "rows").names else "n"
