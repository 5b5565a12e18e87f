"""What a kernel set promises of the same row computed two ways: its INVARIANCE.toml."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from metpipe.circuit.strict import Table, read_toml
from metpipe.errors import ConfigError

__all__ = [
    "OF_A_HEAD",
    "OF_THE_MACHINE",
    "TRIED",
    "Promise",
    "check_levers",
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
    lever: str | None = None
    """the lever behind which it holds too, beside what is promised without one; None: always"""
    multiple_of: int = 1
    """of `prefill_chunks`: of how many tokens each pass but the last has a multiple"""


def parse_promises(text: str, source: str) -> tuple[Promise, ...]:
    """The promises of a file's text.

    Raises:
        ConfigError: a key is missing, unknown or of a wrong type, an axis is not known or is named
            twice: a slip must not pass for a promise, nor for none.
    """
    found: dict[tuple[str, str, str | None], Promise] = {}
    with read_toml(text, source) as root:
        root.schema(1)
        for table in root.tables("promise"):
            promise = _promise(table)
            key = promise.arch, promise.axis, promise.lever
            if key in found:
                behind = f" behind the lever {promise.lever!r}" if promise.lever else ""
                raise table.fail(f"{promise.arch} has the axis {promise.axis!r} twice{behind}")
            found[key] = promise
    return tuple(found.values())


def check_levers(promises: Sequence[Promise], source: str, levers: Collection[str]) -> None:
    """Refuse a promise behind a lever that no rule has: it would speak of no forward.

    Raises:
        ConfigError: naming file, axis and lever.
    """
    for promise in promises:
        if promise.lever is not None and promise.lever not in levers:
            raise ConfigError(
                f"{source}: {promise.arch}, axis = {promise.axis!r}: no rule has the lever "
                f"{promise.lever!r}; those with one: {', '.join(sorted(levers)) or 'none'}"
            )


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
        own = [promise for promise in promises if promise.arch == arch]
        said = {promise.axis for promise in own if promise.lever is None}
        if not families[arch] and (slip := {p.axis for p in own}.intersection(OF_A_HEAD)):
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
            lever=table.optional_text("lever"),
            multiple_of=table.integer("multiple_of", 1),
        )
        if not promise.why.strip():
            raise table.fail("why is empty; say what makes the bits equal, or what keeps them from")
        if table.has("multiple_of"):
            _check_multiple(promise, table)
    return promise


def _check_multiple(promise: Promise, table: Table) -> None:
    if promise.axis != "prefill_chunks" or not promise.bitwise or promise.multiple_of < 2:
        raise table.fail(
            "multiple_of says at which lengths passes are equal: with axis = 'prefill_chunks' and "
            "bitwise = true, 2 tokens or more"
        )
