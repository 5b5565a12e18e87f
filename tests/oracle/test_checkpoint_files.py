"""A synthetic checkpoint as a folder: the same bits, one tensor in memory at a time."""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from metpipe.engine.checkpoints import synthetic
from metpipe.oracle.checkpoint_files import files_for_transformers, write_folder

SHAPES = {
    "model.embed_tokens.weight": (7, 3),
    "model.norm.weight": (3,),
    "model.layers.0.self_attn.q_proj.bias": (5,),
}
CONFIG = {"model_type": "llama", "hidden_size": 3}


def test_folder_holds_the_synthetic_bits_and_config(tmp_path):
    made = synthetic(CONFIG, SHAPES, 3)
    files = files_for_transformers(made, tmp_path / "folder")
    assert (files.path, files.gguf) == (tmp_path / "folder", None)
    read = load_file(files.path / "model.safetensors")
    assert set(read) == set(SHAPES)
    for name, tensor in read.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, made.read(name))
    assert json.loads((files.path / "config.json").read_text()) == CONFIG


@dataclass
class Watched:
    """A checkpoint that notes how many of its tensors are alive at each read."""

    config: dict[str, object]
    tensors: dict[str, tuple[int, ...]]
    read_before: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)

    def read(self, name: str) -> torch.Tensor:
        self.alive.append(sum(there() is not None for there in self.read_before))
        tensor = torch.zeros(self.tensors[name], dtype=torch.bfloat16)
        self.read_before.append(weakref.ref(tensor))
        return tensor


def test_no_two_tensors_are_held_at_once(tmp_path):
    watched = Watched(CONFIG, {f"t{i}": (4, 4) for i in range(5)})
    write_folder(watched, tmp_path)
    assert len(watched.alive) == 5
    assert max(watched.alive) <= 1  # the one whose bytes were just written


@dataclass
class Stored:
    path: Path


def test_stored_checkpoint_is_opened_where_it_lies(tmp_path):
    file = tmp_path / "model.gguf"
    file.touch()
    folder, of_file = (files_for_transformers(Stored(p), tmp_path / "no") for p in (tmp_path, file))
    assert (folder.path, folder.gguf) == (tmp_path, None)
    assert (of_file.folder, of_file.gguf, of_file.path) == (tmp_path, "model.gguf", file)
    assert not (tmp_path / "no").exists()
