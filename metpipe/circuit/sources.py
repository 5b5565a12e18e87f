"""Where a kernel's argument comes from, as text: `0.in.0`, `1.weight`, `step.positions`.

N counts the elements of the rule's pattern from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["GRAMMAR", "Source", "source_problem", "sources_in"]

Source = str | tuple["Source", ...]
"""One source, or a list of them."""

GRAMMAR = (
    "N.in.J, N.out.J, N.weight, N.bias, N.param.NAME, N.state.NAME, N.steps.NAME, N.tensor.NAME, "
    "N.rope.cos, N.rope.sin, dim.NAME, step.NAME, workspace.NAME"
)
STEP_INPUTS = frozenset(
    {"token_ids", "positions", "slots", "block_table", "block_size", "snapshots"}
)
OF_NODE = re.compile(
    r"(\d+)\.(?:(?:in|out)\.\d+|weight|bias|rope\.(?:cos|sin)"
    r"|param\.\w+|tensor\.\w+|(?:state|steps)\.\w+(?:\.\w+)?)"
)
OF_PLAN = re.compile(r"(?:dim|workspace)\.\w+")


def source_problem(source: Source, elements: int) -> str | None:
    """What is wrong with a source in a pattern of so many elements; None when nothing is."""
    for text in sources_in(source):
        problem = _text_problem(text, elements)
        if problem is not None:
            return problem
    return None


def sources_in(source: Source) -> Iterator[str]:
    """Every single source of a source."""
    if isinstance(source, str):
        yield source
        return
    for item in source:
        yield from sources_in(item)


def _text_problem(text: str, elements: int) -> str | None:
    if text.startswith("step."):
        name = text.removeprefix("step.")
        listed = ", ".join(sorted(STEP_INPUTS))
        return None if name in STEP_INPUTS else f"a step has no {name!r}; it has {listed}"
    if OF_PLAN.fullmatch(text):
        return None
    match = OF_NODE.fullmatch(text)
    if match is None:
        return f"{text!r} is no source; the sources are {GRAMMAR}"
    if int(match[1]) >= elements:
        return f"{text!r} names element {match[1]}, and the pattern ends at {elements - 1}"
    return None
