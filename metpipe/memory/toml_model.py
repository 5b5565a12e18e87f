"""The planner's TOML files as pydantic models: every message names the file and the key."""

from __future__ import annotations

import tomllib
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from metpipe.errors import ConfigError

__all__ = ["Strict", "parse_model"]

Model = TypeVar("Model", bound=BaseModel)

WORDS = {
    "missing": "is missing; add it",
    "extra_forbidden": "there is no such key; remove it or correct its name",
}
NAMED = 3
"""Further keys that are named."""


class Strict(BaseModel):
    """A table of a file: no unknown keys, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def parse_model(model: type[Model], text: str, source: str) -> Model:
    """The file's root table as a model.

    Raises:
        ConfigError: broken TOML; or the first key that is unknown, missing or out of range, and
            the names of the others.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    """The first problem in words, the others by their keys."""
    first, *others = error.errors(include_url=False)
    said = f"{_key(first)}: {WORDS.get(first['type'], first['msg'])}"
    if not others:
        return said
    names = [_key(item) for item in others]
    listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    return f"{said} (wrong as well: {listed})"


def _key(item: ErrorDetails) -> str:
    return ".".join(map(str, item["loc"]))
