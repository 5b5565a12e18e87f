"""The planner's TOML files as pydantic models: every message names the file and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from metpipe.errors import ConfigError
from metpipe.wording import sentence

__all__ = ["Schema1", "Strict", "parse_model"]

Model = TypeVar("Model", bound=BaseModel)

WORDS = {
    "missing": "is missing; add it",
    "extra_forbidden": "there is no such key; remove it or correct its name",
    "string_type": "must be text in quotes",
}
NAMES = ("id", "name")
"""Keys that name a table of an array, one of which it has."""
NAMED = 3
"""Further keys that are named."""


class Strict(BaseModel):
    """A table of a file: no unknown keys, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def whole(value: object) -> object:
    """`true` and 1.0 equal 1, and neither is a number of a schema."""
    if type(value) is not int:
        raise ValueError("must be 1, a whole number")
    return value


Schema1: TypeAlias = Annotated[Literal[1], BeforeValidator(whole)]
"""The schema that a file says it is written in."""


def parse_model(model: type[Model], text: str, source: str) -> Model:
    """The file's root table as a model.

    Raises:
        ConfigError: broken TOML; or the first key that is unknown, missing or out of range, and
            the names of the others.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number too long for an int is a ValueError
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error, tables)}") from None


def _sentence(error: ValidationError, tables: Mapping[str, object]) -> str:
    """The first problem in words, the others by their keys."""
    first, *others = error.errors(include_url=False)
    said = f"{_key(first, tables)}: {WORDS.get(first['type']) or sentence(first)}"
    if not others:
        return said
    names = [_key(item, tables) for item in others]
    listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    return f"{said} (wrong as well: {listed})"


def _key(item: ErrorDetails, tables: object) -> str:
    """The dotted key; a table of an array by its name: `copy 'dense-fp8', count`."""
    said, joint = "", ""
    for part in item["loc"]:
        if isinstance(part, int):
            tables = tables[part] if isinstance(tables, list) else None
            said, joint = f"{said} {_name(tables, part)}", ", "
        else:
            tables = tables.get(part) if isinstance(tables, Mapping) else None
            said, joint = f"{said}{joint}{part}", "."
    return said


def _name(table: object, index: int) -> str:
    """The name of an entry of an array, or its number where it has none."""
    names = [table[key] for key in NAMES if key in table] if isinstance(table, Mapping) else []
    return repr(names[0]) if names else f"#{index + 1}"
