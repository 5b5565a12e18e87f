"""Reads the header of a .safetensors file and checks it against the file's length.

Format: 8 bytes little-endian header length, a JSON object, then the data that `data_offsets`
count from (https://huggingface.co/docs/safetensors). The data itself is left to the library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError
from metpipe.file_kind import kind_of

__all__ = ["StoredTensor", "read_header"]

# NOTE: the library's own limit; a longer length means the file isn't safetensors at all.
MAX_HEADER_BYTES = 100_000_000
ITEM_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""The format's dtypes; a shape counts values, packed ones too."""


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
    if kind := kind_of(file):
        raise ConfigError(f"{file}: {kind}, and only a file is read; fetch the file again")
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
    start = 8 + len(raw)
    found = {name: _stored(file, name, entry, start, size) for name, entry in entries.items()}
    _refuse_gaps(file, found, start, size)
    return found


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
    except (ValueError, RecursionError) as error:  # a number too long is a ValueError
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
    if dtype not in ITEM_BITS:
        raise ConfigError(
            f"{file}: {name} is of dtype {dtype!r}, which the format doesn't have; the file is "
            "broken, fetch it again"
        )
    bits = prod(shape) * ITEM_BITS[dtype]
    if bits != 8 * (end - begin):
        raise ConfigError(
            f"{file}: {name} is stored in {end - begin} bytes, but {dtype} {list(shape)} needs "
            f"{-(-bits // 8)}; the file is broken, fetch it again"
        )
    return StoredTensor(file, dtype, shape, data_start + begin, data_start + end)


def _refuse_gaps(file: Path, found: Mapping[str, StoredTensor], start: int, size: int) -> None:
    """The format's data is its tensors, one behind the other, from its start to the file's end."""
    if not found:
        raise ConfigError(f"{file}: its header names no tensor; fetch the file again")
    reached, before = start, "the header"
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != reached:
            how = "overlaps" if tensor.start < reached else "leaves a gap behind"
            raise ConfigError(
                f"{file}: {name} begins at byte {tensor.start} and {how} {before}, which ends at "
                f"{reached}; the file is broken, fetch it again"
            )
        reached, before = tensor.stop, name
    if reached != size:
        raise ConfigError(
            f"{file}: {size - reached} bytes follow {before}, its last tensor; the file is broken, "
            "fetch it again"
        )


def _fields(entry: object) -> tuple[str, Shape, int, int]:
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    whole = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
    if not whole or end < begin or not isinstance(entry["dtype"], str):
        raise ValueError("not counts")
    return entry["dtype"], shape, begin, end
