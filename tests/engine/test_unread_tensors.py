"""A checkpoint that holds more than its config says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.opening import circuit_of, open_model, shapes_of_config
from metpipe.errors import ConfigError
from tests.engine.opened import CONFIG, SIZES


def write_folder(folder: Path, **more: torch.Tensor) -> Path:
    """A checkpoint of CONFIG in `folder`, with these tensors beside those it needs."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {
        name: torch.full(shape, 0.01, dtype=torch.bfloat16)
        for name, shape in shapes_of_config(CONFIG).items()
    }
    save_file({**tensors, **more}, folder / "model.safetensors")
    return folder


def load(folder: Path) -> None:
    checkpoint = open_checkpoint(ModelSource(name="extra", checkpoint=str(folder)))
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    open_model(checkpoint, circuit, open_kernel_sets("cpu", None), SIZES)


def test_a_bias_that_the_config_hides_is_refused_by_name(tmp_path):
    name = "model.layers.1.self_attn.q_proj.bias"
    folder = write_folder(tmp_path / "biased", **{name: torch.zeros(72, dtype=torch.bfloat16)})
    with pytest.raises(ConfigError, match=rf"holds {name}, which its config does not mention"):
        load(folder)


def test_tensors_of_no_layer_that_runs_are_left_alone(tmp_path):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load(write_folder(tmp_path / "old", **{name: torch.zeros(12)}))
