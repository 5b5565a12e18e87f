"""Every way a folder can be wrong ends in a ConfigError that names the file and the cause."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.errors import ConfigError

from .models import write_config, write_folder, write_sharded

TENSORS = {"a.weight": torch.ones(8, 4), "b.weight": torch.ones(4)}
SHARD = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def _truncated(folder: Path) -> None:
    file = write_folder(folder, TENSORS) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def _header(folder: Path, raw: bytes, *, length: int | None = None, data: bytes = b"") -> None:
    stated = len(raw) if length is None else length
    file = write_config(folder) / "model.safetensors"
    file.write_bytes(struct.pack("<Q", stated) + raw + data)


def _entry(folder: Path, entry: object) -> None:
    _header(folder, json.dumps({"a.weight": entry}).encode(), data=b"\0" * 16)


def _without(folder: Path, name: str) -> None:
    (write_sharded(folder, TENSORS) / name).unlink()


def _index(folder: Path, content: object) -> None:
    (write_sharded(folder, TENSORS) / INDEX).write_text(json.dumps(content))


def _pickle(folder: Path) -> None:
    # Loading this would raise: it is no pickle at all.
    (write_config(folder) / "pytorch_model.bin").write_bytes(b"never opened")


def _config(folder: Path, text: bytes) -> None:
    (write_folder(folder, TENSORS) / "config.json").write_bytes(text)


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}

FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated data": (_truncated, r"model\.safetensors: truncated: .* the file has"),
    "truncated header": (
        lambda at: _header(at, b"{", length=900),
        r"model\.safetensors: truncated: the header should be 900 bytes",
    ),
    "no header": (
        lambda at: (write_config(at) / "model.safetensors").write_bytes(b"abc"),
        r"model\.safetensors: 3 bytes are too few",
    ),
    "another format": (
        lambda at: (write_config(at) / "model.safetensors").write_bytes(b"version https://git-lfs"),
        r"model\.safetensors: the header length .* git-lfs pointer",
    ),
    "broken JSON": (lambda at: _header(at, b'{"a": '), r"model\.safetensors: .* isn't JSON"),
    "header is a list": (lambda at: _header(at, b"[1]"), r"isn't a JSON object"),
    "header isn't text": (lambda at: _header(at, b"\xff\xfe"), r"isn't JSON"),
    "entry without offsets": (
        lambda at: _entry(at, {"dtype": "F32", "shape": [2]}),
        r"entry of a\.weight lacks",
    ),
    "entry is a number": (lambda at: _entry(at, 3), r"entry of a\.weight lacks"),
    "negative offset": (
        lambda at: _entry(at, GOOD | {"data_offsets": [-16, 0]}),
        r"entry of a\.weight lacks",
    ),
    "shape against bytes": (
        lambda at: _entry(at, GOOD | {"shape": [3, 2]}),
        r"a\.weight is stored in 16 bytes, but F32 \[3, 2\] needs 24",
    ),
    "missing shard": (lambda at: _without(at, SHARD), rf"{SHARD}: is missing, though {INDEX}"),
    "missing index": (lambda at: _without(at, INDEX), rf"holds 2 safetensors files but no {INDEX}"),
    "index without map": (lambda at: _index(at, {"metadata": {}}), rf"{INDEX}: has no weight_map"),
    "index of another export": (
        lambda at: _index(at, {"weight_map": {"z.weight": SHARD}}),
        rf"{INDEX}: says that z\.weight is in {SHARD}, which doesn't hold it",
    ),
    "index leads out of the folder": (
        lambda at: _index(at, {"weight_map": {"a.weight": "../x.safetensors"}}),
        r"isn't a file name",
    ),
    "pickle": (_pickle, r"pytorch_model\.bin: is a pickle.*convert it to safetensors"),
    "no config.json": (lambda at: at.mkdir(), r"model: has no config\.json"),
    "config isn't JSON": (lambda at: _config(at, b"{not json"), r"config\.json: isn't JSON"),
    "config isn't text": (lambda at: _config(at, b"\xff\xfe\xfd"), r"config\.json: isn't JSON"),
    "config is a list": (lambda at: _config(at, b"[]"), r"config\.json: isn't a JSON object"),
    "does not exist": (lambda at: None, r"model\.checkpoint=.*model: there is no such folder"),
    "is a file": (lambda at: at.write_text("x"), r"model\.checkpoint=.*model: is a file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named(tmp_path: Path, fault: str) -> None:
    make, message = FAULTS[fault]
    make(tmp_path / "model")
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        open_checkpoint(ModelSource("any", checkpoint=str(tmp_path / "model")))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_a_pickle_file_is_refused_and_never_opened(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    file.write_bytes(b"never opened")
    with pytest.raises(ConfigError, match=r"is a pickle.*convert it to safetensors"):
        open_checkpoint(ModelSource("any", checkpoint=str(file)))


def test_a_pickle_beside_safetensors_is_passed_over(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TENSORS)
    (folder / "training_args.bin").write_bytes(b"never opened")
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    assert set(opened.tensors) == set(TENSORS)


def test_reading_weights_of_a_config_alone_says_what_is_missing(tmp_path: Path) -> None:
    opened = open_checkpoint(ModelSource("any", checkpoint=str(write_config(tmp_path / "model"))))
    with pytest.raises(ConfigError, match="no safetensors, which is enough to plan"):
        opened.read("a.weight")
    with pytest.raises(ConfigError, match="no safetensors, which is enough to plan"):
        opened.digest()


def test_a_quantised_tensor_is_refused_when_it_is_read(tmp_path: Path) -> None:
    quantised = {"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}
    folder = write_folder(tmp_path / "model", quantised)
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    with pytest.raises(ConfigError, match=r"a\.weight is stored as F8_E4M3.*pipeline=memory"):
        opened.read("a.weight")


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TENSORS)
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    with pytest.raises(ConfigError, match=r"no tensor z\.weight"):
        opened.read("z.weight")


def test_what_only_the_library_notices_is_a_config_error_too(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    _entry(folder, GOOD)
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    _header(folder, b"[]", data=b"")  # changed behind its back
    with pytest.raises(ConfigError, match=r"model\.safetensors: the safetensors library refuses"):
        opened.read("a.weight")


def test_a_folder_without_permission_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "model", TENSORS)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="can't be read \\(Permission denied\\)"):
        open_checkpoint(ModelSource("any", checkpoint=str(folder)))
