"""Reads the header of a .gguf file: metadata, and where each tensor lies.

Layout: "GGUF", version, counts, key-value pairs, tensor infos, aligned data, all little-endian
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The gguf package's reader makes an
array view of each token string, which takes seconds; this walks the bytes once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError

__all__ = ["GgufHeader", "GgufTensor", "read_gguf_header"]

VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"} | {
    10: "<Q",
    11: "<q",
    12: "<d",
}
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor's bytes lie in the file. `shape` is outermost first, as torch has it."""

    name: str
    type: GGMLQuantizationType
    shape: Shape
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the file says about itself; `tensors` by gguf name."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


V = TypeVar("V")


class _Overrun(Exception):
    """The header states more bytes than the file has."""


@dataclass(slots=True)
class _Cursor:
    """Reads forward through the mapped file; never past its end."""

    data: memoryview
    at: int = 0

    def take(self, count: int) -> memoryview:
        if self.at + count > len(self.data):
            raise _Overrun
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        return str(self.take(self.number("<Q")), "utf-8")

    def value(self, kind: int) -> object:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array(self.number("<I"), self.number("<Q"))
        return struct.unpack(_form(kind), self.take(struct.calcsize(_form(kind))))[0]

    def _array(self, kind: int, count: int) -> list[object]:
        if kind == STRING:
            return [self.text() for _ in range(count)]
        if kind == ARRAY:
            raise ValueError("an array of arrays, which no model needs")
        form = _form(kind)
        size = struct.calcsize(form)
        return list(struct.unpack(f"<{count}{form[1]}", self.take(count * size)))


def read_gguf_header(path: Path) -> GgufHeader:
    """Metadata and tensor places. ConfigError on a broken, truncated or foreign file."""
    try:
        data = memoryview(np.memmap(path, dtype=np.uint8, mode="r"))  # type: ignore[arg-type]
    except OSError as error:
        raise ConfigError(
            f"{path}: can't be read ({error.strerror}); check the path and its permissions"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: is empty; fetch it again") from error
    try:
        return _parse(path, _Cursor(data))
    except _Overrun:
        raise ConfigError(
            f"{path}: truncated: its header goes on beyond the file's end ({len(data)} bytes); "
            "fetch it again"
        ) from None
    except (ValueError, OverflowError, struct.error) as error:
        raise ConfigError(f"{path}: isn't a sound gguf file: {error}; fetch it again") from error


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    if bytes(cursor.take(4)) != b"GGUF":
        raise ValueError("it doesn't begin with GGUF")
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise ValueError(f"version {version} of the format, known are {VERSIONS} little-endian")
    num_tensors, num_pairs = cursor.number("<Q"), cursor.number("<Q")
    metadata = _unique((cursor.text(), cursor.value(cursor.number("<I"))) for _ in range(num_pairs))
    infos = _unique(_info(cursor) for _ in range(num_tensors))
    data_start = _aligned(cursor.at, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    tensors = {
        name: _placed(path, name, info, data_start, len(cursor.data))
        for name, info in infos.items()
    }
    return GgufHeader(path=path, metadata=metadata, tensors=tensors)


def _form(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"a metadata value of unknown type {kind}")
    return SCALARS[kind]


def _unique(pairs: Iterator[tuple[str, V]]) -> dict[str, V]:
    found: dict[str, V] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = value
    return found


def _info(cursor: _Cursor) -> tuple[str, tuple[Shape, int, int]]:
    """Name -> (shape outermost first, type id, offset into the data)."""
    name, num_dims = cursor.text(), cursor.number("<I")
    if not 1 <= num_dims <= MAX_DIMS:
        raise ValueError(f"tensor {name} has {num_dims} dimensions")
    dims = [cursor.number("<Q") for _ in range(num_dims)]
    if not all(dims):
        raise ValueError(f"tensor {name} has an empty dimension")
    return name, (tuple(reversed(dims)), cursor.number("<I"), cursor.number("<Q"))


def _aligned(at: int, alignment: object) -> int:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}, not a power of two")
    return -(-at // alignment) * alignment


def _placed(
    path: Path, name: str, info: tuple[Shape, int, int], data_start: int, file_bytes: int
) -> GgufTensor:
    shape, type_id, offset = info
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError as error:
        raise ConfigError(
            f"{path}: tensor {name} is of quantisation type {type_id}, which the gguf package "
            "doesn't know; upgrade it (pip install -U gguf), or take an F16, BF16 or Q8_0 file"
        ) from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(f"tensor {name} {list(shape)}: its rows aren't whole {kind.name} blocks")
    start = data_start + offset
    stop = start + prod(shape) // block * block_bytes
    if stop > file_bytes:
        raise ConfigError(
            f"{path}: truncated: {name} ends at byte {stop}, the file has {file_bytes}; fetch it "
            "again"
        )
    return GgufTensor(name=name, type=kind, shape=shape, start=start, stop=stop)
