"""A variant: one forward that is compared with the reference run."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from metpipe.config.fields import Frozen

__all__ = ["Rules", "Variant", "Without"]


class Without(Frozen):
    """Every rule that claims equal bits, except these."""

    without: tuple[str, ...]


def known_rules(value: object) -> object:
    """Refuse other shapes in one sentence, where a union would answer with one per member."""
    shaped = (
        value in ("reference", "all")
        or isinstance(value, Without)
        or _names(value)
        or (isinstance(value, dict) and set(value) == {"without"} and _names(value["without"]))
    )
    if not shaped:
        raise ValueError("must be reference, all, a list of rule ids, or {without: [ids]}")
    return value


def _names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


Rules: TypeAlias = Annotated[
    Literal["reference", "all"] | tuple[str, ...] | Without, BeforeValidator(known_rules)
]


class Variant(Frozen):
    """One forward: its code, rules, levers and kernels, and how it is judged."""

    forward: Literal["legacy", "circuit"]
    rules: Rules = "reference"
    levers: tuple[str, ...] = ()
    graphs: bool = False
    kernels: Literal["builtin", "overlay"] = "builtin"
    expect: Literal["equal", "report"] = Field(
        default="equal", description="equal: judged; report: severity only"
    )
    allow_vacuous: bool = False
