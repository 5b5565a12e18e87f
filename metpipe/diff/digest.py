"""Digests of logits: 128 bits, as 32 hex digits.

Dtype and shape are part of a digest, so that equal bytes of another dtype do not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

import torch

from metpipe.diff.bytewise import flat_bytes

__all__ = ["HashBytes", "HashRows", "logits_digest", "row_digests"]

HashBytes = Callable[[torch.Tensor], str]
"""The hash of a tensor's bytes where they live: uint8 [bytes] -> hex."""

HashRows = Callable[[torch.Tensor, int], tuple[str, ...]]
"""A keyed hash of each row of [R, V] where they live -> hex."""

KEY = b"metpipe logits digest 1"


def logits_digest(logits: torch.Tensor, *, hash_bytes: HashBytes | None = None) -> str:
    """The digest of a tensor; two tensors with equal digests are taken to be equal byte for byte.

    `hash_bytes` is a hash that runs on the device (must depend on the order of the bytes); without
    it the bytes are copied to the host. Digests of different hashes never match.
    """
    state = blake2b(f"{logits.dtype} {list(logits.shape)} ".encode(), digest_size=16, key=KEY)
    content = flat_bytes(logits)
    if hash_bytes is None:
        state.update(b"host ")
        state.update(content.cpu().numpy().data)
    else:
        state.update(b"device " + hash_bytes(content).encode())
    return state.hexdigest()


def row_digests(
    logits_RV: torch.Tensor,
    *,
    hash_bytes: HashBytes | None = None,
    hash_rows: HashRows | None = None,
) -> tuple[str, ...]:
    """A digest for each row, so that a difference known by digest alone still names its row.

    With `hash_rows` all rows are hashed in one call, where they live.
    """
    if hash_rows is not None:
        return hash_rows(logits_RV, form_key(logits_RV.dtype, logits_RV.shape[1]))
    return tuple(logits_digest(row, hash_bytes=hash_bytes) for row in logits_RV)


@lru_cache
def form_key(dtype: torch.dtype, width: int) -> int:
    """A key of 128 bits for rows of one dtype and width."""
    content = f"{dtype} [{width}] ".encode()
    return int.from_bytes(blake2b(content, digest_size=16, key=KEY).digest(), "little")
