"""Byte expressions of workspaces: integers, names, `+`, `*`, and `/` as ceiling division.

`*` and `/` bind tighter than `+` and go from left to right: with n = 4 and hidden = 64,
`n*hidden/32*4` is ceil(256 / 32) x 4 = 32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from metpipe.errors import ConfigError

__all__ = ["evaluate_expression", "expression_names"]

TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([+*/]))")

Factor = int | str
Term = tuple[tuple[str, Factor], ...]
"""A product: (operator, factor) pairs, the first operator being `*`."""


def evaluate_expression(text: str, names: Mapping[str, int], where: str) -> int:
    """The expression's value in bytes; `where` is what holds it, for the message.

    Raises:
        ConfigError: the text is no expression, names an unknown dimension or divides by zero.
    """
    return sum(_product(term, names, text, where) for term in _parse(text, where))


def expression_names(text: str, where: str) -> frozenset[str]:
    """The names that the expression reads."""
    return frozenset(
        factor for term in _parse(text, where) for _, factor in term if isinstance(factor, str)
    )


def _product(term: Term, names: Mapping[str, int], text: str, where: str) -> int:
    value = 1
    for operator, factor in term:
        number = factor if isinstance(factor, int) else _named(factor, names, text, where)
        if operator == "*":
            value *= number
        elif number == 0:
            raise ConfigError(f"{where}: the expression {text!r} divides by zero ({factor})")
        else:
            value = -(-value // number)
    return value


def _named(name: str, names: Mapping[str, int], text: str, where: str) -> int:
    if name not in names:
        known = ", ".join(sorted(names))
        raise ConfigError(f"{where}: the expression {text!r} names {name!r}; known here: {known}")
    return names[name]


@lru_cache(maxsize=1024)
def _parse(text: str, where: str) -> tuple[Term, ...]:
    def refuse() -> ConfigError:
        return ConfigError(
            f"{where}: {text!r} is no byte expression; write integers and dimensions joined "
            "by +, * and / (which rounds up)"
        )

    tokens = _tokens(text, refuse)
    if len(tokens) % 2 == 0:
        raise refuse()
    terms: list[list[tuple[str, Factor]]] = []
    operator = "+"
    for position, token in enumerate(tokens):
        if position % 2:
            operator = token
            if operator not in ("+", "*", "/"):
                raise refuse()
        elif token in ("+", "*", "/"):
            raise refuse()
        else:
            factor: Factor = int(token) if token.isdigit() else token
            if operator == "+":
                terms.append([("*", factor)])
            else:
                terms[-1].append((operator, factor))
    return tuple(tuple(term) for term in terms)


def _tokens(text: str, refuse: Callable[[], ConfigError]) -> list[str]:
    tokens, position, stripped = [], 0, text.rstrip()
    while position < len(stripped):
        match = TOKEN.match(stripped, position)
        if match is None:
            raise refuse()
        tokens.append(match.group().strip())
        position = match.end()
    return tokens
