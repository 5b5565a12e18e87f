"""The files of a checkpoint that transformers opens with its own reader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from metpipe.engine.checkpoints import Checkpoint

__all__ = ["CheckpointFiles", "files_for_transformers", "write_folder"]

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A Hugging Face folder, or a .gguf within one."""

    folder: Path
    gguf: str | None
    reader: str
    """Which of transformers' readers opens it, as the report says it."""

    @property
    def path(self) -> Path:
        """What is opened."""
        return self.folder if self.gguf is None else self.folder / self.gguf


def files_for_transformers(checkpoint: Checkpoint, scratch: Path) -> CheckpointFiles:
    """The checkpoint's own files; a synthetic one, which has none, is written to `scratch`."""
    path = checkpoint.path
    if path is None:
        write_folder(checkpoint, scratch)
        return CheckpointFiles(scratch, None, "safetensors, of synthetic weights")
    if path.is_dir():
        return CheckpointFiles(path, None, "safetensors")
    return CheckpointFiles(path.parent, path.name, "gguf_file")


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write config.json and model.safetensors (bf16), one tensor in memory at a time.

    Format: 8 bytes little-endian header length, a JSON object, the data
    (https://huggingface.co/docs/safetensors).
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    header = json.dumps(_header(checkpoint)).encode()
    header += b" " * (-len(header) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for name in checkpoint.tensors:
            stored = checkpoint.read(name).contiguous().view(torch.int16)
            stored.numpy().tofile(file)


def _header(checkpoint: Checkpoint) -> dict[str, object]:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in checkpoint.tensors.items():
        end = begin + BF16_BYTES * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    return header
