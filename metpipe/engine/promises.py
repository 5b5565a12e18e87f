"""What a kernel set promises of the same row computed two ways: its INVARIANCE.toml."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit.strict import read_toml

__all__ = ["Promise", "parse_promises"]


@dataclass(frozen=True, slots=True)
class Promise:
    """One axis of one family; `bitwise`: the diff may judge it."""

    arch: str
    axis: str
    bitwise: bool
    text: str
    why: str


def parse_promises(text: str, source: str) -> tuple[Promise, ...]:
    """The promises of a file's text.

    Raises:
        ConfigError: a key is missing, unknown or of a wrong type: a slip must not pass for one.
    """
    found = []
    with read_toml(text, source) as root:
        root.schema(1)
        for promise in root.tables("promise"):
            with promise:
                found.append(
                    Promise(
                        bitwise=promise.boolean("bitwise"),
                        arch=promise.text("arch"),
                        axis=promise.text("axis"),
                        text=promise.text("text"),
                        why=promise.text("why"),
                    )
                )
    return tuple(found)
