"""A Hugging Face folder: config.json beside safetensors, single or sharded, memory-mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metpipe.engine.checkpoints.cache import cached_by_files
from metpipe.engine.checkpoints.digest import RawTensor, raw_digest, read_chunks
from metpipe.engine.checkpoints.protocol import Shape, Tokenizer
from metpipe.engine.checkpoints.safetensors_header import StoredTensor, read_header
from metpipe.engine.checkpoints.tokenizer import tokenizer_from_file
from metpipe.errors import ConfigError
from metpipe.file_kind import kind_of

if TYPE_CHECKING:
    import torch

__all__ = ["PICKLE_REFUSED", "HfFolder", "is_pickle", "open_folder", "read_json"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SIDECAR = "hf_quant_config.json"
PICKLE_REFUSED = (
    "is a pickle, which can run any code when loaded, so metpipe never loads one; convert it to "
    "safetensors (load it where you trust it, then save_pretrained(FOLDER, "
    "safe_serialization=True)) and give that folder"
)
EXECUTABLE = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class HfFolder:
    """The folder's config and the places of its tensors; bytes are read when asked for."""

    path: Path
    config: Mapping[str, object]
    stored: Mapping[str, StoredTensor]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def source(self) -> str:
        """The folder."""
        return str(self.path)

    @property
    def reader(self) -> Literal["safetensors"]:
        """Always safetensors."""
        return "safetensors"

    @property
    def tensors(self) -> Mapping[str, Shape]:
        """Tensor name -> shape."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name -> its type by safetensors' names."""
        return {name: tensor.dtype for name, tensor in self.stored.items()}

    @property
    def has_weights(self) -> bool:
        """False when config.json stands alone."""
        return bool(self.stored)

    def read(self, name: str) -> torch.Tensor:
        """The tensor in bf16; a view of the mapped file when it is stored in bf16."""
        import torch
        from safetensors import SafetensorError, safe_open

        tensor = self._find(name)
        if tensor.dtype not in EXECUTABLE:
            raise ConfigError(
                f"{tensor.file}: {name} is stored as {tensor.dtype}; the engine executes "
                f"{', '.join(EXECUTABLE)} only. Take an unquantised checkpoint, or plan this one "
                "with pipeline=memory"
            )
        try:
            with safe_open(tensor.file, framework="pt") as opened:
                stored: torch.Tensor = opened.get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(
                f"{tensor.file}: the safetensors library refuses it ({error}); fetch it again"
            ) from error
        return stored.to(torch.bfloat16)

    def digest(self) -> str:
        """Sha256 over the stored tensors; remembered by the files' sizes and times."""
        self._require_weights()
        files = {tensor.file for tensor in self.stored.values()}
        return cached_by_files("safetensors", files, lambda: raw_digest(self._raw()))

    def tokenizer(self) -> Tokenizer | None:
        """From tokenizer.json; None when the folder has none."""
        file = self.path / "tokenizer.json"
        return tokenizer_from_file(file) if file.exists() else None

    def _raw(self) -> list[RawTensor]:
        return [
            RawTensor(name, at.dtype, at.shape, read_chunks(at.file, at.start, at.stop))
            for name, at in sorted(self.stored.items())
        ]

    def _find(self, name: str) -> StoredTensor:
        self._require_weights()
        if name not in self.stored:
            raise ConfigError(f"{self.path}: there is no tensor {name} in its safetensors")
        return self.stored[name]

    def _require_weights(self) -> None:
        if not self.stored:
            raise ConfigError(
                f"{self.path}: holds config.json but no safetensors, which is enough to plan "
                "(pipeline=memory) but not to run; fetch the weights into it"
            )


def open_folder(path: Path) -> HfFolder:
    """The checkpoint in a folder that exists. ConfigError names the file that is at fault."""
    config = path / "config.json"
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{path}: can't be entered; check its permissions")
    if not config.exists():
        raise ConfigError(
            f"{path}: has no config.json; model.checkpoint wants the Hugging Face folder that "
            "holds config.json and *.safetensors, or a .gguf file"
        )
    return HfFolder(path=path, config=_read_config(config), stored=_read_stored(path))


def _read_config(file: Path) -> dict[str, object]:
    """config.json; a ModelOpt export without a quantization_config declares it in a file beside."""
    config, beside = read_json(file), file.parent / SIDECAR
    if config.get("quantization_config") is not None or not beside.exists():
        return config
    declared = read_json(beside).get("quantization")
    if not isinstance(declared, dict):
        raise ConfigError(f"{beside}: has no object `quantization`; fetch it again")
    return {**config, "quantization_config": {"quant_method": "modelopt", **declared}}


def read_json(file: Path) -> dict[str, object]:
    """The JSON object in a file. ConfigError when it can't be read or isn't an object."""
    if found := kind_of(file):
        raise ConfigError(f"{file}: {found}, and only a file is read; put the JSON file there")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file}: can't be read ({error.strerror}); check the path and its permissions"
        ) from error
    except (ValueError, RecursionError) as error:  # a number too long is a ValueError
        raise ConfigError(f"{file}: isn't JSON ({error}); fetch or mend the file") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: isn't a JSON object; fetch or mend the file")
    return content


def _read_stored(folder: Path) -> dict[str, StoredTensor]:
    if (folder / SINGLE).exists():
        return read_header(folder / SINGLE)
    if (folder / INDEX).exists():
        return _read_shards(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: holds {len(found)} safetensors files but no {INDEX} that says which tensor "
            f"is where; fetch the index"
        )
    if not found:
        _refuse_pickles(folder)
    return read_header(found[0]) if found else {}


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    placed = _weight_map(index)
    headers = {name: _read_shard(index, name) for name in sorted(set(placed.values()))}
    for tensor, shard in placed.items():
        if tensor not in headers[shard]:
            raise ConfigError(
                f"{index}: says that {tensor} is in {shard}, which doesn't hold it; "
                "index and shards are of different exports, fetch them together"
            )
    return {tensor: headers[shard][tensor] for tensor, shard in placed.items()}


def _weight_map(index: Path) -> dict[str, str]:
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ConfigError(f"{index}: has no weight_map; fetch the index again")
    for tensor, shard in placed.items():
        # NOTE: an index may come from anywhere; it must not lead out of its folder.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ConfigError(f"{index}: the shard of {tensor} ({shard!r}) isn't a file name")
    return placed


def _read_shard(index: Path, name: str) -> dict[str, StoredTensor]:
    shard = index.parent / name
    if not shard.exists():
        raise ConfigError(f"{shard}: is missing, though {index.name} names it; fetch the shard")
    return read_header(shard)


def _refuse_pickles(folder: Path) -> None:
    found = sorted(file for file in folder.iterdir() if is_pickle(file))
    if found:
        raise ConfigError(f"{found[0]}: {PICKLE_REFUSED}")


def is_pickle(file: Path) -> bool:
    """Whether a file's name says that it is a pickled checkpoint."""
    return file.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt", ".pkl")
