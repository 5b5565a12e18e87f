"""Reads the header of a .safetensors file and checks it against the file's length.

Format: 8 bytes little-endian header length, a JSON object, then the data that `data_offsets`
count from (https://huggingface.co/docs/safetensors). The data itself is left to the library.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError

__all__ = ["StoredTensor", "read_header"]

# NOTE: the library's own limit; a longer length means the file isn't safetensors at all.
MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes lie: absolute offsets into its file."""

    file: Path
    dtype: str
    shape: Shape
    start: int
    stop: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Tensor name -> where it is stored. ConfigError on a broken or truncated file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            raw = _header_bytes(file, stream, size)
    except OSError as error:
        raise ConfigError(
            f"{file}: can't be read ({error.strerror}); check the path and its permissions"
        ) from error
    entries = _parse(file, raw)
    entries.pop("__metadata__", None)
    return {name: _stored(file, name, entry, 8 + len(raw), size) for name, entry in entries.items()}


def _header_bytes(file: Path, stream: BinaryIO, size: int) -> bytes:
    if size < 8:
        raise ConfigError(
            f"{file}: {size} bytes are too few for a safetensors file; fetch it again"
        )
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > MAX_HEADER_BYTES:
        raise ConfigError(
            f"{file}: the header length it states ({length} bytes) is beyond the format's limit: "
            "this isn't a safetensors file (a git-lfs pointer or another format?)"
        )
    if 8 + length > size:
        raise ConfigError(
            f"{file}: truncated: the header should be {length} bytes long, the file ends after "
            f"{size - 8} of them; fetch it again"
        )
    return stream.read(length)


def _parse(file: Path, raw: bytes) -> dict[str, object]:
    try:
        entries = json.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{file}: the safetensors header isn't JSON ({error}); fetch the file again"
        ) from error
    if not isinstance(entries, dict):
        raise ConfigError(f"{file}: the safetensors header isn't a JSON object; fetch it again")
    return entries


def _stored(file: Path, name: str, entry: object, data_start: int, size: int) -> StoredTensor:
    try:
        dtype, shape, begin, end = _fields(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file}: the safetensors header entry of {name} lacks a sound dtype, shape or "
            "data_offsets; fetch the file again"
        ) from error
    if data_start + end > size:
        raise ConfigError(
            f"{file}: truncated: {name} ends at byte {data_start + end}, the file has {size}; "
            "fetch it again"
        )
    if dtype in ITEM_BYTES and prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise ConfigError(
            f"{file}: {name} is stored in {end - begin} bytes, but {dtype} {list(shape)} needs "
            f"{prod(shape) * ITEM_BYTES[dtype]}; the file is broken, fetch it again"
        )
    return StoredTensor(file, dtype, shape, data_start + begin, data_start + end)


def _fields(entry: object) -> tuple[str, Shape, int, int]:
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    whole = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
    if not whole or end < begin or not isinstance(entry["dtype"], str):
        raise ValueError("not counts")
    return entry["dtype"], shape, begin, end
