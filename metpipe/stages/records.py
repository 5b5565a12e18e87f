"""Dataclasses of the core to and from the JSON that a stage keeps."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from metpipe.pipeline.store import RESULT

__all__ = ["read_result", "restore", "to_json"]

T = TypeVar("T")


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once a type: building one takes milliseconds."""
    return TypeAdapter(kind)


def to_json(value: object) -> Any:
    """Plain JSON data of a frozen dataclass (or a tuple or mapping of them)."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def restore(kind: type[T], data: object) -> T:
    """The dataclass of `kind` that `to_json` turned into `data`."""
    wanted: Any = kind
    restored: T = _adapter(wanted).validate_python(data)
    return restored


def read_result(folder: Path) -> dict[str, Any]:
    """The record that a finished stage returned."""
    record: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return record
