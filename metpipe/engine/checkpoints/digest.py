"""The digest of weights: sha256 over the sorted tensors' names, stored types, shapes and bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from metpipe.engine.checkpoints.protocol import Shape

__all__ = ["RawTensor", "raw_digest", "read_chunks"]

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it is stored; `chunks` are its bytes in order."""

    name: str
    dtype: str
    shape: Shape
    chunks: Iterable[bytes | memoryview]


def raw_digest(tensors: Iterable[RawTensor]) -> str:
    """Hex sha256 of the tensors, which must come sorted by name; streams, holds one chunk."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        shape = "x".join(map(str, tensor.shape))
        hasher.update(f"{tensor.name}\0{tensor.dtype}\0{shape}\n".encode())
        for chunk in tensor.chunks:
            hasher.update(chunk)
    return hasher.hexdigest()


def read_chunks(file: Path, start: int, stop: int) -> Iterator[memoryview]:
    """The bytes start..stop of a file; each chunk is valid until the next is asked for."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(stop - start, 1))))
    with file.open("rb", buffering=0) as stream:
        stream.seek(start)
        while start < stop:
            count = stream.readinto(buffer[: stop - start])
            if not count:
                raise OSError(f"{file} ended at byte {start} while it was read")
            yield buffer[:count]
            start += count
