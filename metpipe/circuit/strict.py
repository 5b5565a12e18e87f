"""Reads TOML tables strictly: each key is asked for by name and type, any other key is refused.

This is the edge of the package; past it only frozen dataclasses travel.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from types import TracebackType

from metpipe.errors import ConfigError

__all__ = ["Table", "read_toml"]

REQUIRED = object()


def read_toml(text: str, source: str, error: type[ConfigError] = ConfigError) -> Table:
    """The root table of a TOML text; `source` names the file in every message."""
    try:
        return Table(tomllib.loads(text), source, error)
    except (ValueError, RecursionError) as problem:  # a number too long is a ValueError
        raise error(f"{source}: not valid TOML: {problem}") from None


class Table:
    """One table of a file. Used as a context manager it refuses the keys that were not read."""

    def __init__(
        self, raw: Mapping[str, object], where: str, error: type[ConfigError] = ConfigError
    ) -> None:
        self.raw = raw
        self.where = where
        self.error = error
        self._asked: set[str] = set()

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        """Refuse every key that nobody asked for."""
        unknown = sorted(set(self.raw) - self._asked)
        if unknown:
            known = ", ".join(sorted(self._asked))
            raise self.fail(f"unknown key {unknown[0]!r}; the keys known here are {known}")

    def fail(self, message: str) -> ConfigError:
        """The error to raise, with this table's place in front."""
        return self.error(f"{self.where}: {message}")

    def schema(self, known: int) -> None:
        """Refuse a file that is written in another schema."""
        found = self.integer("schema")
        if found != known:
            raise self.fail(f"schema {found} is not known; this reader reads schema {known}")

    def has(self, key: str) -> bool:
        """Whether the key is there; asking counts as knowing it."""
        self._asked.add(key)
        return key in self.raw

    def value(self, key: str, default: object = REQUIRED) -> object:
        """The raw value of a key."""
        if self.has(key):
            return self.raw[key]
        if default is REQUIRED:
            raise self.fail(f"the key {key!r} is missing")
        return default

    def text(self, key: str, default: object = REQUIRED) -> str:
        """A string."""
        value = self.value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None when the key is absent."""
        return self.text(key) if self.has(key) else None

    def choice(self, key: str, allowed: Collection[str], default: object = REQUIRED) -> str:
        """A string out of a closed set."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.fail(f"{key} = {value!r} is not one of {', '.join(sorted(allowed))}")
        return value

    def integer(self, key: str, default: object = REQUIRED) -> int:
        """An integer."""
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer", value)
        return value

    def boolean(self, key: str, default: object = REQUIRED) -> bool:
        """A boolean."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def texts(self, key: str, default: object = REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        value = self.value(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self._wrong(key, "a list of strings", value)
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        """A table of strings; empty when absent."""
        value = self.value(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._wrong(key, "a table of strings", value)
        return dict(value)

    def table(self, key: str, name: str | None = None) -> Table:
        """A sub-table; empty when absent."""
        value = self.value(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return Table(value, f"{self.where}, {name or key}", self.error)

    def subtables(self, key: str, name: str | None = None) -> dict[str, Table]:
        """A table whose values are tables; empty when absent."""
        inner = self.table(key, name)
        return {child: inner.table(child, f"{name or key} {child}") for child in inner.raw}

    def tables(self, key: str, name: str | None = None) -> list[Table]:
        """An array of tables; empty when absent. Each is named by its `id` where it has one."""
        value = self.value(key, [])
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self._wrong(key, "an array of tables", value)
        return [
            Table(item, f"{self.where}, {name or key} {item.get('id', f'#{index}')!s}", self.error)
            for index, item in enumerate(value)
        ]

    def _wrong(self, key: str, wanted: str, value: object) -> ConfigError:
        return self.fail(f"{key} must be {wanted}, it is {value!r}")
