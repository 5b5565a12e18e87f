"""What a kernel set promises of the same row computed two ways: its INVARIANCE.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metpipe.circuit.strict import Table, read_toml
from metpipe.errors import ConfigError

__all__ = [
    "OF_A_HEAD",
    "OF_THE_MACHINE",
    "TRIED",
    "Promise",
    "check_promises",
    "parse_promises",
]

OF_A_HEAD = ("draft",)
"""Axes of families that may have a draft head."""
TRIED = (
    "width",
    "padding",
    "slot",
    "neighbours",
    "verify",
    "prefill_chunks",
    "prefill_decode",
    *OF_A_HEAD,
)
"""The axes of the invariance table, which has legs for each of them."""
OF_THE_MACHINE = ("threads", "vector_width")
"""Axes that one run can't try: it has one machine."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One axis of one family; `bitwise`: the diff may judge it, else it is reported."""

    arch: str
    axis: str
    bitwise: bool
    text: str
    why: str


def parse_promises(text: str, source: str) -> tuple[Promise, ...]:
    """The promises of a file's text.

    Raises:
        ConfigError: a key is missing, unknown or of a wrong type, an axis is not known or is named
            twice: a slip must not pass for a promise, nor for none.
    """
    found: dict[tuple[str, str], Promise] = {}
    with read_toml(text, source) as root:
        root.schema(1)
        for table in root.tables("promise"):
            promise = _promise(table)
            if (promise.arch, promise.axis) in found:
                raise table.fail(f"{promise.arch} has the axis {promise.axis!r} twice")
            found[promise.arch, promise.axis] = promise
    return tuple(found.values())


def check_promises(
    promises: Sequence[Promise], source: str, families: Mapping[str, bool], *, whole: bool
) -> None:
    """Refuse promises of what is no family, and a family of which only some axes are spoken of.

    `families`: whether each may have a draft head. `whole`: of a shipped set. A folder that is laid
    over one says only what it says otherwise.

    Raises:
        ConfigError: naming file, family and axis: what nobody speaks of is silently not judged.
    """
    for arch in dict.fromkeys(promise.arch for promise in promises):
        if arch not in families:
            raise ConfigError(
                f"{source}: arch = {arch!r} is no family; those are {', '.join(sorted(families))}"
            )
        said = {promise.axis for promise in promises if promise.arch == arch}
        if not families[arch] and (slip := said.intersection(OF_A_HEAD)):
            raise ConfigError(
                f"{source}: {arch} has no draft head, and a promise with axis = {min(slip)!r}; "
                "leave it out"
            )
        tried = [axis for axis in TRIED if families[arch] or axis not in OF_A_HEAD]
        missing = [axis for axis in tried if axis not in said]
        if whole and missing:
            raise ConfigError(
                f"{source}: {arch} has no promise with axis = {missing[0]!r}; add one, with "
                "bitwise = false and a why where the set does not promise it"
            )


def _promise(table: Table) -> Promise:
    with table:
        promise = Promise(
            bitwise=table.boolean("bitwise"),
            arch=table.text("arch"),
            axis=table.choice("axis", (*TRIED, *OF_THE_MACHINE)),
            text=table.text("text"),
            why=table.text("why"),
        )
        if not promise.why.strip():
            raise table.fail("why is empty; say what makes the bits equal, or what keeps them from")
    return promise
