"""Checkpoints that are broken, incomplete, of another family, or no checkpoint at all."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from tests.bad_input.lines import DIFF, MEMORY, has
from tests.engine.checkpoints.models import (
    SIZES,
    gguf_writer,
    weights,
    write_config,
    write_folder,
    write_gguf,
    write_sharded,
)

CONFIG = {"model_type": "llama", **SIZES}
WEIGHTS = weights("llama", tied=False)
UP = "model.layers.1.mlp.up_proj.weight"
MET = (*MEMORY, "memory.accounting=met", "hardware=gb10")


Write = Callable[[Path], Path]


def folder(config: Mapping[str, object] = CONFIG, **tensors: torch.Tensor) -> Write:
    return lambda at: write_folder(at, {**WEIGHTS, **tensors}, config)


def edited(edit: Callable[[Path], object]) -> Write:
    def write(at: Path) -> Path:
        edit(write_folder(at, WEIGHTS))
        return at

    return write


def without(name: str) -> Write:
    return lambda at: write_folder(at, {k: v for k, v in WEIGHTS.items() if k != name})


def cut(at: Path, size: int) -> None:
    os.truncate(at, size)


def empty(at: Path) -> Path:
    at.mkdir()
    return at


def pickled(at: Path) -> Path:
    write_config(at)
    (at / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch loaded'\ntR.")
    return at


def sharded(missing: str) -> Write:
    def write(at: Path) -> Path:
        (write_sharded(at, WEIGHTS) / missing).unlink()
        return at

    return write


def gguf(architecture: str = "llama", keep: float = 1.0) -> Write:
    def write(at: Path) -> Path:
        path = write_gguf(at.with_suffix(".gguf"), architecture, WEIGHTS)
        cut(path, int(keep * path.stat().st_size))
        return path

    return write


def bare_gguf(at: Path) -> Path:
    path = at.with_suffix(".gguf")
    kept = {k: v for k, v in WEIGHTS.items() if k != UP}
    return write_gguf(path, "llama", kept, writer=gguf_writer(path, "llama"))


def stored(tensors: Mapping[str, tuple[str, list[int], list[int]]], data: int) -> Write:
    """A folder whose weights are a header as stated and so many bytes of zeros."""

    def write(at: Path) -> Path:
        names = ("dtype", "shape", "data_offsets")
        entries = {name: dict(zip(names, entry, strict=True)) for name, entry in tensors.items()}
        raw = json.dumps(entries).encode()
        file = write_config(at, CONFIG) / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * data)
        return at

    return write


def pipe(name: str) -> Write:
    """A folder where a file is a pipe, which nobody ever writes to."""

    def write(at: Path) -> Path:
        write_folder(at, WEIGHTS)
        (at / name).unlink()
        os.mkfifo(at / name)
        return at

    return write


NORM = "model.norm.weight"
FIRST = ("BF16", [2], [0, 4])


@pytest.mark.parametrize("asked", [(), ("memory.accounting=met", "hardware=gb10")])
@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (stored({}, 0), ["its header names no tensor", "fetch"]),
        (stored({"a.b": FIRST}, 4), ["is missing, expected", "of different models"]),
        (stored({NORM: FIRST, UP: ("BF16", [2], [2, 6])}, 6), [UP, "at byte", f"overlaps {NORM}"]),
        (stored({NORM: FIRST, UP: ("BF16", [2], [6, 10])}, 10), [UP, "a gap behind", NORM]),
        (stored({NORM: FIRST}, 9), ["5 bytes follow", NORM, "broken, fetch it again"]),
        (stored({NORM: FIRST}, 3), ["truncated", NORM]),
        (stored({NORM: ("FOO", [2], [0, 4])}, 4), [NORM, "dtype 'FOO'", "fetch it again"]),
        (stored({NORM: ("F8_E4M3", [2], [0, 4])}, 4), [NORM, "in 4 bytes", "needs 2"]),
        (pipe("config.json"), ["config.json: it is no regular file"]),
        (pipe("model.safetensors"), ["model.safetensors: it is no regular file"]),
    ],
    ids=[
        "no tensor", "foreign", "overlap", "gap", "junk", "short", "dtype", "size", "config pipe",
        "weights pipe",
    ],
)  # fmt: skip
def test_weights_whose_sizes_would_be_counted_wrong(refused, tmp_path, asked, write, parts):
    path = write(tmp_path / "model")
    has(refused(f"model.checkpoint={path}", *MEMORY, *asked), str(path), *parts)


SCHEME = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 17}
GROUP = {"group_0": {"targets": ["Linear"], "weights": SCHEME}}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"hidden_size": 10**30}, ["hidden_size = 1000", "is more than 2147483647"]),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [-1, 128]}},
            ["quantization_config: weight_block_size = [-1, 128]"],
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": GROUP,
                }
            },
            ["quantization_config: a width of 64 is no multiple of the 17", "its group size"],
        ),
    ],
    ids=["hidden size", "block size", "group size"],
)
def test_a_config_is_named_with_its_key(refused, tmp_path, change, parts):
    path = write_config(tmp_path / "model", {**CONFIG, **change})
    has(refused(f"model.checkpoint={path}", *MEMORY), f"{path}/config.json: ", *parts)


SHARD = "model-00002-of-00002.safetensors"
ROPE = {"rope_type": "linear", "factor": "two"}


@pytest.mark.parametrize(
    ("write", "pipeline", "parts"),
    [
        (empty, MEMORY, ["has no config.json", "wants the Hugging Face folder"]),
        (edited(lambda at: (at / "config.json").write_text("{")), MEMORY, ["isn't JSON", "mend"]),
        (edited(lambda at: (at / "config.json").write_text("[]")), MEMORY, ["isn't a JSON object"]),
        (folder({**CONFIG, "zzz": 1}), MEMORY, ["the key 'zzz' is not classified", "Remove it"]),
        (folder({**CONFIG, "model_type": "gpt9"}), MEMORY, ["model_type 'gpt9'", "circuit are"]),
        (folder({**CONFIG, "rms_norm_eps": "x"}), MEMORY, ["rms_norm_eps must be a number"]),
        (folder({**CONFIG, "rope_scaling": ROPE}), MEMORY, ["rope_scaling.factor must be"]),
        (without(UP), DIFF, [f"tensor {UP} is missing, expected [96, 64]", "isn't whole"]),
        (folder(**{UP: torch.zeros(3, 4)}), DIFF, ["has shape [3, 4], expected [96, 64]"]),
        (without(UP), MEMORY, [f"tensor {UP} is missing, expected [96, 64]", "isn't whole"]),
        (without(UP), MET, [f"tensor {UP} is missing, expected [96, 64]", "isn't whole"]),
        (folder(**{UP: torch.zeros(3, 4)}), MEMORY, ["has shape [3, 4], expected [96, 64]"]),
        (folder(**{UP: torch.zeros(3, 4)}), MET, ["has shape [3, 4], expected [96, 64]"]),
        (
            folder(**{UP: torch.zeros(96, 64, dtype=torch.float8_e4m3fn)}),
            MEMORY,
            [f"tensor {UP} is stored as F8_E4M3, and the config declares bf16"],
        ),
        (bare_gguf, MEMORY, [f"tensor {UP} is missing", "isn't whole"]),
        (
            edited(lambda at: cut(at / "model.safetensors", 200_000)),
            MEMORY,
            ["model.safetensors: truncated", "fetch it again"],
        ),
        (
            edited(lambda at: cut(at / "model.safetensors", 50)),
            MEMORY,
            ["the header should be", "fetch it again"],
        ),
        (write_config, DIFF, ["has a config but no weights", "give a checkpoint with its"]),
        (pickled, MEMORY, ["pytorch_model.bin: is a pickle", "never loads one", "convert it"]),
        (sharded(SHARD), MEMORY, [f"{SHARD}: is missing", "fetch the shard"]),
        (sharded("model.safetensors.index.json"), MEMORY, ["2 safetensors files", "fetch the"]),
        (gguf("gpt9"), MEMORY, ["architecture is 'gpt9'", "use the safetensors folder"]),
        (gguf(keep=0.9), MEMORY, ["truncated: ", "fetch it again"]),
        (gguf(keep=0.001), MEMORY, ["its header goes on beyond the file's end", "fetch it again"]),
        (bare_gguf, DIFF, [f"tensor {UP} is missing", "isn't whole"]),
    ],
    ids=[
        "no config", "no JSON", "no object", "unclassified key", "model type", "wrong type",
        "wrong type inside", "tensor missing", "tensor shape", "planned tensor missing",
        "met's tensor missing", "planned tensor's shape", "met's tensor's shape",
        "planned tensor's type", "planned gguf tensor missing", "truncated", "header truncated",
        "no weights", "pickle", "shard missing", "index missing", "gguf architecture",
        "gguf truncated", "gguf header truncated", "gguf tensor missing",
    ],
)  # fmt: skip
def test_a_bad_checkpoint(refused, tmp_path, write, pipeline, parts):
    path = write(tmp_path / "model")
    Path("ids.jsonl").write_text("[1, 2, 3]\n")
    prompts = ("prompts=ids.jsonl",) if pipeline == DIFF else ()
    message = refused(f"model.checkpoint={path}", *pipeline, *prompts)
    has(message, str(path), *parts, f"set by the override 'model.checkpoint={path}'")
    assert not Path("loaded").exists()
