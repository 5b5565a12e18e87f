"""What a rule between the keys finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from metpipe.config.run import Run

__all__ = ["Problem", "Rule"]


class Problem(NamedTuple):
    """One thing that is wrong: the key, and a sentence that says what and what to do."""

    key: str
    message: str


Rule: TypeAlias = Callable[[Run], Iterator[Problem]]
