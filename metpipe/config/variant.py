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

    forward: Literal["legacy", "circuit"] = Field(description="written by hand, or generated")
    rules: Rules = Field(
        default="reference",
        description="reference, all, a list of ids, or {without: [ids]}",
    )
    levers: tuple[str, ...] = Field(default=(), description="rules that move bits, let in by name")
    graphs: bool = Field(default=False, description="launches captured once and replayed")
    kernels: Literal["builtin", "overlay"] = Field(
        default="overlay",
        description="overlay: with the kernels and rules of `kernels=FOLDER`, where there is one",
    )
    expect: Literal["equal", "report"] = Field(
        default="equal", description="equal: judged; report: severity only"
    )
    allow_vacuous: bool = Field(
        default=False, description="being the same program as the reference is meant"
    )
