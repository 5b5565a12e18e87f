"""The field types of the config's models: strict numbers, and lists that take one number."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

__all__ = [
    "MOST_NUMBERS",
    "Count",
    "Counts",
    "Frozen",
    "Natural",
    "Number",
    "Place",
    "Steps",
    "Widths",
    "place",
]


class Frozen(BaseModel):
    """A table of the config: no unknown keys, no change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def one_or_many(value: object) -> object:
    """A list key takes one number too; an empty list is refused, since it would compare nothing."""
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("must hold at least one number")
        return tuple(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError("must be a whole number or a list of them")
    return value if value is None else (value,)


def no_repeats(value: tuple[int, ...]) -> tuple[int, ...]:
    """What stands in a list twice would be run and counted twice."""
    for number, times in Counter(value).items():
        if times > 1:
            raise ValueError(f"holds {number} more than once; name each number once")
    return value


Number: TypeAlias = Annotated[int, Strict()]
"""A whole number; `true`, 4.0 and '4' are refused, since each is a slip of the hand."""
Natural: TypeAlias = Annotated[Number, Field(ge=0)]
Count: TypeAlias = Annotated[Number, Field(ge=1)]
Counts: TypeAlias = Annotated[
    tuple[Count, ...], BeforeValidator(one_or_many), AfterValidator(no_repeats)
]
"""A list of different counts, or one count."""
Width: TypeAlias = Annotated[Number, Field(ge=2)]
Widths: TypeAlias = Annotated[
    tuple[Width, ...], BeforeValidator(one_or_many), AfterValidator(no_repeats)
]
"""A list of different widths (at least two rows each), or one."""


MOST_NUMBERS = 1_000_000
"""Numbers of one axis: as many loads as a grid may have."""
STEPS = re.compile(r"(\d+)\.\.(\d+)(?:/(\d+))?")


def steps(value: object) -> object:
    """`1..100` and `1024..65536/1024` are every (so many) number from the first to the last."""
    if not isinstance(value, str):
        return one_or_many(value)
    if (found := STEPS.fullmatch(value)) is None:
        raise ValueError("must be a number, a list, FIRST..LAST or FIRST..LAST/STEP")
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if step < 1 or last < first:
        raise ValueError("must rise from FIRST to LAST by a STEP of at least 1")
    count = (last - first) // step + 1
    if count > MOST_NUMBERS:  # looked at before they are made
        raise ValueError(f"has {count:,} numbers, above {MOST_NUMBERS:,}; give it a larger STEP")
    return tuple(range(first, last + 1, step))


def ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    """From the least; what a list holds twice is refused."""
    return tuple(sorted(no_repeats(values)))


Steps: TypeAlias = Annotated[tuple[Count, ...], BeforeValidator(steps), AfterValidator(ascending)]
"""Counts in order, given as a number, a list, `1..100` or `1024..65536/1024`."""


def place(value: str) -> str:
    """A path, with ~ as the home folder."""
    if not value:
        raise ValueError("must be a path; null leaves it out")
    return os.path.expanduser(value)


Place: TypeAlias = Annotated[str, AfterValidator(place)]
"""The path of a file or folder."""
