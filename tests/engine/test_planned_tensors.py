"""A plan of a folder whose files are of another model is refused; what cannot be told is let be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from metpipe.engine.checkpoints.folder import open_folder
from metpipe.engine.opening import circuit_of
from metpipe.engine.planned_tensors import check_planned
from metpipe.errors import ConfigError
from tests.engine.checkpoints.models import SIZES, weights, write_config, write_folder

WEIGHTS = weights("llama", tied=False)
UP = "model.layers.1.mlp.up_proj"
NORM = "model.layers.1.input_layernorm.weight"
FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel"},
        }
    },
}
CONFIG = {"model_type": "llama", **SIZES, "quantization_config": FP8}
TENSORS = Path(__file__).parents[1] / "circuit" / "data"


def packed(spelling: str) -> dict[str, torch.Tensor]:
    """The linears of the layers under another name, beside their scales."""
    found = {}
    for name, tensor in WEIGHTS.items():
        if ".layers." in name and name.endswith("proj.weight"):
            module = name.removesuffix(".weight")
            found[f"{module}.{spelling}"] = torch.zeros(3, 5, dtype=torch.uint8)
            found[f"{module}.weight_scale"] = torch.zeros(3)
        else:
            found[name] = tensor
    return found


def checked(folder: Path) -> None:
    checkpoint = open_folder(folder)
    check_planned(checkpoint, circuit_of(checkpoint.config, checkpoint.source))


@pytest.mark.parametrize("spelling", ["weight", "weight_packed"])
def test_a_quantised_weight_has_the_shape_that_its_format_gives_it(tmp_path, spelling):
    checked(write_folder(tmp_path / "model", packed(spelling), CONFIG))


def test_a_quantised_weight_that_is_there_under_no_spelling_is_named(tmp_path):
    tensors = packed("weight_packed")
    del tensors[f"{UP}.weight_packed"]
    with pytest.raises(ConfigError, match=rf"tensor {UP}\.weight is missing, expected \[96, 64\]"):
        checked(write_folder(tmp_path / "model", tensors, CONFIG))


def test_what_a_quantised_checkpoint_stores_plainly_has_the_config_s_shape(tmp_path):
    tensors = packed("weight") | {NORM: torch.zeros(48)}
    with pytest.raises(ConfigError, match=rf"tensor {NORM} has shape \[48\], expected \[64\]"):
        checked(write_folder(tmp_path / "model", tensors, CONFIG))


def test_experts_that_are_stacked_as_blocks_are_found(tmp_path):
    config = json.loads((TENSORS / "family_configs.json").read_text())["gpt_oss"]
    config |= {"hidden_size": 64, "intermediate_size": 32}  # whole groups of 32
    whole = {48: 64, 20: 32, 40: 64}
    shapes = json.loads((TENSORS / "family_tensors.json").read_text())["gpt_oss"]
    alone = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    mxfp4 = {"quant_method": "mxfp4", "modules_to_not_convert": [*alone, "model.embed_tokens"]}
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[f"{name}_blocks"] = torch.zeros(2, 3, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(2, dtype=torch.uint8)
        else:
            shape = [whole.get(size, size) for size in shape]
            tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
    config["quantization_config"] = mxfp4
    checked(write_folder(tmp_path / "model", tensors, config))
    missing = next(name for name in tensors if name.endswith("down_proj_blocks"))
    del tensors[missing]
    with pytest.raises(ConfigError, match=r"experts\.0\.down_proj.* is missing"):
        checked(write_folder(tmp_path / "cut", tensors, config))


def test_types_that_are_rounded_to_bf16_are_no_fault(tmp_path):
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    tensors = {name: t.to(kinds[i % 3]) for i, (name, t) in enumerate(WEIGHTS.items())}
    checked(write_folder(tmp_path / "model", tensors))


def test_of_a_config_that_stands_alone_nothing_is_asked(tmp_path):
    checked(write_config(tmp_path / "model"))


@pytest.mark.parametrize("family", ["gpt_oss", "minimax_m2", "mistral4", "nemotron_h", "gemma4"])
def test_families_that_are_planned_only_find_their_tensors(tmp_path, family):
    config = json.loads((TENSORS / "family_configs.json").read_text())[family]
    shapes = json.loads((TENSORS / "family_tensors.json").read_text())[family]
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    folder = write_folder(tmp_path / "model", tensors, config)
    checked(folder)
    bound = next(name for name in tensors if name.endswith("o_proj.weight"))
    del tensors[bound]
    with pytest.raises(ConfigError, match=f"tensor {bound} is missing"):
        checked(write_folder(tmp_path / "cut", tensors, config))
