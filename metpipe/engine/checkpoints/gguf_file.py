"""A .gguf file of a dense model: dequantised to bf16 as it is read, under Hugging Face names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from metpipe.engine.checkpoints.cache import cached_by_files
from metpipe.engine.checkpoints.digest import RawTensor, raw_digest, read_chunks
from metpipe.engine.checkpoints.gguf_config import rebuild_config
from metpipe.engine.checkpoints.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from metpipe.engine.checkpoints.gguf_names import ROPE_FREQS, hf_name, hf_row_order
from metpipe.engine.checkpoints.gguf_tokenizer import gguf_tokenizer
from metpipe.engine.checkpoints.protocol import Shape, Tokenizer
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["GgufFile", "open_gguf"]

# Dequantised at a time: fits the cache, and is so small that torch rounds it on this thread. Waking
# torch's pool for each chunk costs more than the work, and threads of our own gained nothing.
CHUNK_ELEMENTS = 1 << 15

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The file's header with its config; bytes are read when asked for."""

    path: Path
    header: GgufHeader
    config: Mapping[str, object]
    stored: Mapping[str, GgufTensor]
    """By Hugging Face name."""

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

    @property
    def source(self) -> str:
        """The file."""
        return str(self.path)

    @property
    def reader(self) -> Literal["gguf"]:
        """Always gguf."""
        return "gguf"

    @property
    def tensors(self) -> Mapping[str, Shape]:
        """Tensor name -> shape."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name -> its type by ggml's names."""
        return {name: tensor.type.name for name, tensor in self.stored.items()}

    @property
    def has_weights(self) -> bool:
        """Always true: a gguf without tensors is refused when it is opened."""
        return True

    def read(self, name: str) -> torch.Tensor:
        """The tensor in bf16; a view of the mapped file when it is stored in bf16 in this order."""
        if name not in self.stored:
            raise ConfigError(f"{self.path}: there is no tensor {name} in this file")
        tensor = self.stored[name]
        order = self._row_order(name, tensor.shape)
        if tensor.type == GGMLQuantizationType.BF16 and order is None:
            return _mapped_bf16(self.path, tensor)
        return _dequantised(_raw_rows(self.path, tensor), tensor, order)

    def digest(self) -> str:
        """Sha256 over the stored tensors; remembered by the file's size and time."""
        return cached_by_files("gguf", [self.path], lambda: raw_digest(self._raw()))

    def tokenizer(self) -> Tokenizer | None:
        """Rebuilt from tokenizer.ggml.*; None when the file has none."""
        return gguf_tokenizer(self.path, self.header.metadata)

    def _raw(self) -> list[RawTensor]:
        return [
            RawTensor(name, at.type.name, at.shape, read_chunks(self.path, at.start, at.stop))
            for name, at in sorted(self.stored.items())
        ]

    def _row_order(self, name: str, shape: Shape) -> npt.NDArray[np.int64] | None:
        if self.header.metadata["general.architecture"] != "llama":
            return None
        heads = {".q_proj.": "num_attention_heads", ".k_proj.": "num_key_value_heads"}
        for part, key in heads.items():
            if part in name:
                count = self.config[key]
                assert isinstance(count, int)
                if shape[0] % (2 * count):
                    raise ConfigError(
                        f"{self.path}: {name} {list(shape)} isn't {count} heads of pairs of rows; "
                        "the file is broken, fetch it again"
                    )
                return hf_row_order(count, shape[0])
        return None


def open_gguf(path: Path) -> GgufFile:
    """The checkpoint in a .gguf file; reads its header. ConfigError names what is at fault."""
    header = read_gguf_header(path)
    for tensor in header.tensors.values():
        _check_type(path, tensor)
    config = rebuild_config(header, _rope_freqs(header))
    return GgufFile(path=path, header=header, config=config, stored=_by_hf_name(header))


def _by_hf_name(header: GgufHeader) -> dict[str, GgufTensor]:
    named = {}
    for tensor in header.tensors.values():
        if tensor.name == ROPE_FREQS:
            continue  # became the config's rope_scaling
        name = hf_name(tensor.name)
        if name is None:
            raise ConfigError(
                f"{header.path}: tensor {tensor.name} belongs to no dense llama, qwen2 or qwen3; "
                "metpipe can't run this file"
            )
        named[name] = tensor
    return named


def _check_type(path: Path, tensor: GgufTensor) -> None:
    if not _dequantises(tensor.type):
        raise ConfigError(
            f"{path}: tensor {tensor.name} is of type {tensor.type.name}, which the gguf package "
            "can't dequantise; take an F16, BF16 or Q8_0 file of the model"
        )


@lru_cache
def _dequantises(kind: GGMLQuantizationType) -> bool:
    try:
        gguf.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _rope_freqs(header: GgufHeader) -> F32 | None:
    tensor = header.tensors.get(ROPE_FREQS)
    if tensor is None:
        return None
    rows = _raw_rows(header.path, tensor)
    return np.array(gguf.dequantize(rows, tensor.type), dtype=np.float32).reshape(-1)


def _raw_rows(path: Path, tensor: GgufTensor) -> U8:
    """The stored bytes, mapped: uint8 [rows, bytes of a row]."""
    size = tensor.stop - tensor.start
    # NOTE: mode c, since torch warns of read-only arrays; nothing writes to it
    mapped = np.memmap(path, dtype=np.uint8, mode="c", offset=tensor.start, shape=(size,))
    return np.asarray(mapped).reshape(prod(tensor.shape[:-1]), -1)


def _mapped_bf16(path: Path, tensor: GgufTensor) -> torch.Tensor:
    import torch

    bits = _raw_rows(path, tensor).reshape(-1).view(np.int16)
    return torch.from_numpy(bits).view(torch.bfloat16).reshape(tensor.shape)


def _dequantised(rows: U8, tensor: GgufTensor, order: npt.NDArray[np.int64] | None) -> torch.Tensor:
    """The tensor in bf16; `order`: which stored row becomes each row. A few chunks are held."""
    import torch

    if order is not None and len(tensor.shape) == 1:
        rows = rows.reshape(tensor.shape[0], -1)
    count = len(rows)
    out = torch.empty((count, prod(tensor.shape) // count), dtype=torch.bfloat16)
    step = max(1, CHUNK_ELEMENTS // out.shape[1])

    for start in range(0, count, step):
        piece = slice(start, start + step)
        stored = rows[piece if order is None else order[piece]]
        with np.errstate(all="ignore"):  # a NaN that the file holds is given on, not warned of
            values = gguf.dequantize(stored, tensor.type)
        out[piece].copy_(torch.from_numpy(values))
    return out.reshape(tensor.shape)
