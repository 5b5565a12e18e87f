"""Hugging Face folders: what is read equals what was written, and is not copied on the way."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.checkpoints.folder import open_folder
from metpipe.errors import ConfigError

from .models import SIZES, weights, write_config, write_folder, write_sharded


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_folder_gives_config_and_every_tensor(tmp_path: Path, model_type: str) -> None:
    made = {name: tensor.bfloat16() for name, tensor in weights(model_type, tied=False).items()}
    config = {"model_type": model_type, **SIZES}
    folder = write_folder(tmp_path / "model", made, config)
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    assert (opened.reader, opened.path, opened.name) == ("safetensors", folder, "model")
    assert opened.config == config
    assert opened.has_weights
    assert opened.tensors == {name: tuple(tensor.shape) for name, tensor in made.items()}
    assert all(torch.equal(opened.read(name), tensor) for name, tensor in made.items())


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    made = {name: tensor.bfloat16() for name, tensor in weights("llama", tied=True).items()}
    opened = open_folder(write_sharded(tmp_path / "model", made))
    assert set(opened.tensors) == set(made)
    assert all(torch.equal(opened.read(name), tensor) for name, tensor in made.items())


def test_a_sole_safetensors_file_may_have_any_name(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model")
    save_file({"a.weight": torch.ones(2)}, folder / "weights.safetensors")
    assert open_folder(folder).tensors == {"a.weight": (2,)}


def test_model_safetensors_is_preferred_over_another_export_beside_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(2)})
    save_file({"b.weight": torch.ones(3)}, folder / "consolidated.safetensors")
    assert set(open_folder(folder).tensors) == {"a.weight"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_wider_types_are_rounded_to_nearest_even(tmp_path: Path, dtype: torch.dtype) -> None:
    # 1 + 2^-8 and 1 + 3 * 2^-8 lie midway between bf16 neighbours: to 1 and to 1 + 2^-6.
    stored = torch.tensor([1.0 + 2**-8, 1.0 + 3 * 2**-8, -0.0, 65504.0], dtype=dtype)
    opened = open_folder(write_folder(tmp_path / "model", {"a.weight": stored}))
    expected = torch.tensor([1.0, 1.0 + 2**-6, -0.0, 65536.0], dtype=torch.bfloat16)
    read = opened.read("a.weight")
    assert read.dtype == torch.bfloat16
    if dtype == torch.bfloat16:
        expected = stored
    assert torch.equal(read.view(torch.int16), expected.view(torch.int16))


def test_bf16_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(1 << 20).bfloat16()})
    read = open_folder(folder).read("a.weight")
    assert _mapping_of(read.data_ptr()).endswith("model.safetensors")


def test_writing_to_what_was_read_leaves_the_file_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(64).bfloat16()})
    before = hashlib.sha256((folder / "model.safetensors").read_bytes()).digest()
    open_folder(folder).read("a.weight").zero_()
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).digest() == before


def test_config_alone_is_enough_to_plan(tmp_path: Path) -> None:
    opened = open_folder(write_config(tmp_path / "model"))
    assert opened.config["hidden_size"] == SIZES["hidden_size"]
    assert not opened.has_weights
    assert opened.tensors == {}
    assert opened.tokenizer() is None


def test_digest_depends_on_bytes_names_and_types_only(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.arange(6.0), "b.weight": torch.ones(2, 3)}
    whole = open_folder(write_folder(tmp_path / "whole", tensors)).digest()
    sharded = open_folder(write_sharded(tmp_path / "sharded", tensors)).digest()
    assert whole == sharded
    others = [
        tensors | {"a.weight": torch.arange(6.0).flip(0)},
        tensors | {"a.weight": torch.arange(6.0).reshape(2, 3)},
        tensors | {"a.weight": torch.arange(6.0).half()},
        {"c.weight": tensors["a.weight"], "b.weight": tensors["b.weight"]},
    ]
    digests = {
        open_folder(write_folder(tmp_path / str(index), other)).digest()
        for index, other in enumerate(others)
    }
    assert len(digests | {whole}) == 5


def test_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(4)})
    first = open_folder(folder).digest()
    with monkeypatch.context() as patched:
        patched.setattr("metpipe.engine.checkpoints.folder.raw_digest", lambda _: "never")
        assert open_folder(folder).digest() == first
    write_folder(folder, {"a.weight": torch.zeros(4)})
    assert open_folder(folder).digest() != first


def test_digest_does_without_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(4)})
    first = open_folder(folder).digest()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "file"))
    assert open_folder(folder).digest() == first


def _mapping_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(end, 16) for end in line.split(" ", 1)[0].split("-"))
        if start <= address < stop:
            return line
    return ""


def test_an_export_s_formats_are_read_from_the_file_beside_its_config(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    beside = folder / "hf_quant_config.json"
    declared = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": declared}))
    assert open_folder(folder).config == {
        **config, "quantization_config": {"quant_method": "modelopt", **declared},
    }  # fmt: skip
    own = {**config, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(own))
    assert open_folder(folder).config == own
    (folder / "config.json").write_text(json.dumps(config))
    beside.write_text('{"quantization": []}')
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json: has no object"):
        open_folder(folder)
