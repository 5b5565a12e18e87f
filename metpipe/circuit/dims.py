"""Size expressions over named dimensions: sums of products of names and positive integers.

`2*q_heads*head_dim + hidden`, `n*top_k`, `n/pool`. `*` and `/` go from left to right, and `/`
rounds down, or up where the reader asks for that (bytes of a workspace).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from metpipe.circuit.errors import BadCircuit

__all__ = ["Expr", "holds", "parse_expr"]

FACTOR = re.compile(r"[a-z_][a-z0-9_]*|[0-9]+")
LIMIT = 1 << 64

Factor = tuple[str, str | int]
"""An operator (`*` or `/`) and what it applies; the first operator of a product is `*`."""


@dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression; `text` is its source without blanks."""

    text: str
    products: tuple[tuple[Factor, ...], ...]

    @property
    def names(self) -> frozenset[str]:
        """The names it reads."""
        return frozenset(f for product in self.products for _, f in product if isinstance(f, str))

    def value(self, dims: Mapping[str, int], where: str, *, round_up: bool = False) -> int:
        """Its value; `where` is what holds it, for the message.

        Raises:
            BadCircuit: a name is unknown, a divisor is zero, or the value needs more than 64 bits.
        """
        total = sum(self._product(product, dims, where, round_up) for product in self.products)
        if total >= LIMIT:
            raise BadCircuit(f"{where}: {self.text} = {total} does not fit 64 bits")
        return total

    def _product(
        self, product: tuple[Factor, ...], dims: Mapping[str, int], where: str, round_up: bool
    ) -> int:
        value = 1
        for operator, factor in product:
            number = factor if isinstance(factor, int) else self._dim(factor, dims, where)
            if operator == "*":
                value *= number
            elif number:
                value = -(-value // number) if round_up else value // number
            else:
                raise BadCircuit(f"{where}: {self.text} divides by {factor}, which is 0")
        return value

    def _dim(self, name: str, dims: Mapping[str, int], where: str) -> int:
        if name not in dims:
            raise BadCircuit(
                f"{where}: {self.text!r} names the dimension {name!r}, which is not known here; "
                f"known are {', '.join(sorted(dims))}"
            )
        return dims[name]


@lru_cache(maxsize=4096)
def parse_expr(text: str, where: str) -> Expr:
    """Parse an expression; `where` is what holds it, for the message.

    Raises:
        BadCircuit: the text is no sum of products, or holds a zero.
    """
    products = tuple(_parse_product(part, text, where) for part in text.split("+"))
    return Expr("".join(text.split()), products)


def _parse_product(part: str, text: str, where: str) -> tuple[Factor, ...]:
    pieces = [piece.strip() for piece in re.split(r"([*/])", part)]
    operators = ["*", *pieces[1::2]]
    return tuple(
        (operator, _parse_factor(piece, text, where))
        for operator, piece in zip(operators, pieces[::2], strict=True)
    )


def _parse_factor(piece: str, text: str, where: str) -> str | int:
    if not FACTOR.fullmatch(piece):
        raise BadCircuit(
            f"{where}: {text!r} is no size; write a sum of products of names and positive "
            "integers, such as 2*q_heads*head_dim"
        )
    if not piece.isdigit():
        return piece
    if int(piece) == 0:
        raise BadCircuit(f"{where}: {text!r} holds a zero; sizes are products of positive numbers")
    return int(piece)


def holds(switch: str, dims: Mapping[str, int], where: str) -> bool:
    """Whether a switch holds: `name` while that dimension is not 0, `!name` while it is."""
    name = switch.removeprefix("!")
    if name not in dims:
        raise BadCircuit(f"{where}: the switch {switch!r} names no dimension of the model")
    return (dims[name] != 0) != switch.startswith("!")
