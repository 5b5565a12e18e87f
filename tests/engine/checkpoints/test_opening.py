"""What the model section may say, and the check against the circuit's tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml

from metpipe.circuit import circuit_from_config
from metpipe.engine.checkpoints import (
    ModelSource,
    PackageSource,
    check_tensors,
    open_checkpoint,
    synthetic,
)
from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.engine.weights import weight_shapes
from metpipe.errors import ConfigError
from metpipe.memory import quantised_formats
from metpipe.resources import conf_dir, kernels_dir

from .models import write_config, write_folder

CHOICES = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))
SHAPES = {"a.weight": (8, 4), "b.weight": (4,)}
PACKAGE = PackageSource("p", "1", "m.gguf", "0" * 64)


def _shapes_of(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return weight_shapes(circuit_from_config(config, kernels_dir()))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_shipped_choice_is_sound(choice: str) -> None:
    text = (conf_dir() / "model" / f"{choice}.yaml").read_text()
    section = yaml.safe_load(text)
    assert text.startswith("# ")
    assert section["name"] == choice
    optional = {"weights", "note"} & set(section)
    assert set(section) - optional == {"name", "checkpoint_id", "checkpoint", "config", "package"}
    assert (section["checkpoint_id"] is None) == choice.startswith("tiny_")
    assert section["checkpoint"] is None
    assert (section["config"] is None) != (section["package"] is None)
    if section["package"] is not None:
        assert PackageSource(**section["package"]).file.endswith(".gguf")
        return
    kind = section.get("weights", "random")
    model = ModelSource(choice, config=section["config"], seed=1, weights=kind)
    circuit = circuit_from_config(section["config"], kernels_dir())
    if circuit.arch not in LEGACY_FAMILIES or quantised_formats(circuit.nodes):
        assert not open_checkpoint(model).has_weights  # to plan for
        return
    opened = open_checkpoint(model, shapes_of=_shapes_of)
    assert opened.name == choice
    assert check_tensors(opened, _shapes_of(section["config"])) == []


def test_parameters_of_the_published_shapes() -> None:
    counts = {}
    for choice in ("qwen3_0_6b", "qwen3_8b", "llama_3_1_8b"):
        section = yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())
        shapes = _shapes_of(section["config"]).values()
        counts[choice] = sum(torch.Size(shape).numel() for shape in shapes)
    assert counts == {
        "qwen3_0_6b": 596_049_920,
        "qwen3_8b": 8_190_735_360,
        "llama_3_1_8b": 8_030_261_248,
    }


def test_a_config_without_shapes_is_enough_to_plan() -> None:
    opened = open_checkpoint(ModelSource("any", config={"model_type": "llama"}))
    assert opened.config == {"model_type": "llama"}
    assert not opened.has_weights


def test_seed_reaches_the_weights() -> None:
    one, two = (
        open_checkpoint(ModelSource("any", config={}, seed=seed), shapes_of=lambda _: SHAPES)
        for seed in (1, 2)
    )
    assert not torch.equal(one.read("a.weight"), two.read("a.weight"))


def test_a_checkpoint_wins_over_the_choice(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model")
    model = ModelSource("tiny", checkpoint=str(folder), config={"x": 1}, package=PACKAGE)
    assert open_checkpoint(model).source == str(folder)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ModelSource("tiny"), "model tiny: names no weights; set model.checkpoint"),
        (
            ModelSource("tiny", config={}, package=PACKAGE),
            "model tiny: model.package and model.config are both set",
        ),
        (
            ModelSource("tiny", checkpoint="Qwen/Qwen3-0.6B"),
            "Qwen/Qwen3-0.6B: there is no such folder or file; metpipe reads local",
        ),
    ],
)
def test_a_section_that_names_no_weights_is_refused(model: ModelSource, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(model)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    opened = open_checkpoint(ModelSource("any", checkpoint="~/model"))
    assert opened.path == tmp_path / "model"


def test_extra_tensors_are_listed() -> None:
    checkpoint = synthetic({}, {**SHAPES, "rotary_emb.inv_freq.weight": (2,)}, 0)
    assert check_tensors(checkpoint, SHAPES) == ["rotary_emb.inv_freq.weight"]


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"b.weight": torch.ones(4)})
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    with pytest.raises(
        ConfigError, match=r"model: tensor a\.weight is missing, expected \[8, 4\];"
    ):
        check_tensors(opened, SHAPES)


def test_a_wrong_shape_is_named_with_both(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(4, 8), "b.weight": torch.ones(5)}
    opened = open_checkpoint(
        ModelSource("any", checkpoint=str(write_folder(tmp_path / "model", tensors)))
    )
    message = r"a\.weight has shape \[4, 8\], expected \[8, 4\] \(and 1 tensor more"
    with pytest.raises(ConfigError, match=message):
        check_tensors(opened, SHAPES)


def test_weights_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    opened = open_checkpoint(ModelSource("any", checkpoint=str(write_config(tmp_path / "model"))))
    with pytest.raises(ConfigError, match="has a config but no weights"):
        check_tensors(opened, SHAPES)


def test_planning_imports_no_torch(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model")
    program = (
        "import sys; from metpipe.engine.checkpoints import ModelSource, open_checkpoint; "
        f"open_checkpoint(ModelSource('any', checkpoint={str(folder)!r})); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
