"""The planner's TOML files as pydantic models: every message names the file and the key."""

from __future__ import annotations

import tomllib
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from metpipe.errors import ConfigError

__all__ = ["Strict", "parse_model"]

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A table of a file: no unknown keys, no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def parse_model(model: type[Model], text: str, source: str) -> Model:
    """The file's root table as a model.

    Raises:
        ConfigError: broken TOML; or a line for each key that is unknown, missing or out of range.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        lines = [
            f"{source}: {'.'.join(map(str, item['loc']))}: {item['msg']}"
            for item in error.errors(include_url=False)
        ]
        raise ConfigError("\n".join(lines)) from None
