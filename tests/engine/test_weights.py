"""Weights as the engine holds them: one tensor a binding, bf16, of exactly the planned bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from metpipe.circuit import Select
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints import Checkpoint, ModelSource, check_tensors, open_checkpoint
from metpipe.engine.opening import circuit_of
from metpipe.engine.weights import Weights, load_weights, weight_shapes
from metpipe.errors import ConfigError
from metpipe.memory.kernel_set import read_kernel_set
from metpipe.memory.planned import Planned
from metpipe.resources import kernels_dir
from tests.engine.hybrid_models import CONFIGS, save_hybrid, set_key, unstack

pytest.importorskip("transformers.models.qwen3_5_moe.modeling_qwen3_5_moe")


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(ModelSource(name="small", checkpoint=str(folder)))


def loaded(folder: Path) -> tuple[Weights, Allocator, list[int]]:
    checkpoint, allocator = opened(folder), Allocator(torch.device("cpu"))
    counted: list[int] = []
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    return load_weights(circuit, checkpoint, allocator, counted.append), allocator, counted


def tables(weights: Weights) -> dict[object, torch.Tensor]:
    return {**weights.matrices, **weights.biases, **weights.tensors}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_ledger_holds_the_planned_bytes(tmp_path: Path, name: str) -> None:
    folder = save_hybrid(tmp_path / "model", name, 1)
    weights, allocator, counted = loaded(folder)
    circuit = circuit_of(opened(folder).config, name)
    planned = Planned(circuit, read_kernel_set(kernels_dir() / "cpu"), Select.reference())
    assert allocator.bytes_by_tag() == {"weights": planned.weights}
    stored = weight_shapes(circuit, opened(folder).tensors)
    assert sum(counted) == len(stored)
    assert check_tensors(opened(folder), stored) == sorted(opened(folder).tensors - stored.keys())
    assert all(tensor.dtype == torch.bfloat16 for tensor in tables(weights).values())


def test_experts_stored_one_by_one_are_the_same_tensors(tmp_path: Path) -> None:
    folder = save_hybrid(tmp_path / "model", "experts", 1)
    stacked, _, _ = loaded(folder)
    unstack(folder)
    names = opened(folder).tensors
    assert "model.layers.0.mlp.experts.6.up_proj.weight" in names
    assert "model.layers.0.mlp.experts.gate_up_proj" not in names
    single, allocator, counted = loaded(folder)
    assert sum(counted) == len(names)
    assert tables(single).keys() == tables(stacked).keys()
    for key, tensor in tables(single).items():
        assert torch.equal(tensor.view(torch.int16), tables(stacked)[key].view(torch.int16))
    base = "model.layers.2.mlp.experts.*"
    whole = single.matrix((f"{base}.gate_proj", f"{base}.up_proj"))
    assert whole.shape == (7, 44, 60)
    gate, up = (
        opened(folder).read(f"model.layers.2.mlp.experts.5.{name}.weight")
        for name in ("gate_proj", "up_proj")
    )
    assert torch.equal(whole[5], torch.cat((gate, up)))
    assert single.matrix((f"{base}.down_proj",)).shape == (7, 60, 22)
    assert allocator.bytes_by_tag()["weights"] == sum(t.nbytes for t in tables(single).values())


def test_small_tensors_stored_in_f32_are_rounded_to_bf16(tmp_path: Path) -> None:
    folder = save_hybrid(tmp_path / "model", "dense", 1)
    file, name = folder / "model.safetensors", "model.layers.0.linear_attn.A_log"
    exact = torch.tensor([1.00390625, 1.01171875, -2.0078126, 0.3, 1e-3, 7.0])
    save_file({**load_file(file), name: exact}, file, metadata={"format": "pt"})
    weights, _, _ = loaded(folder)
    assert weights.tensor(name).tolist() == exact.to(torch.bfloat16).tolist()
    assert weights.tensor(name).tolist()[:2] == [1.0, 1.015625]  # ties go to even
    assert weights.tensor("model.layers.0.linear_attn.conv1d.weight").shape == (236, 1, 4)


def without_head(folder: Path) -> None:
    """As transformers saves a model: no draft head, the config's key unchanged."""
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if name[:4] != "mtp."}
    save_file(kept, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["dense", "experts, nested, tied"])
def test_a_folder_without_its_draft_head_says_which_key_to_set(tmp_path: Path, name: str) -> None:
    folder = save_hybrid(tmp_path / "model", name, 1)
    without_head(folder)
    shapes = weight_shapes(circuit_of(opened(folder).config, name), opened(folder).tensors)
    with pytest.raises(ConfigError, match=r"mtp\.\S+ is missing.*set mtp_num_hidden_layers to 0"):
        check_tensors(opened(folder), shapes)
    set_key(folder, "mtp_num_hidden_layers", 0)
    shapes = weight_shapes(circuit_of(opened(folder).config, name), opened(folder).tensors)
    check_tensors(opened(folder), shapes)


@pytest.mark.parametrize("lost", ["mtp.norm.weight", "model.norm.weight"])
def test_another_missing_tensor_is_not_blamed_on_the_draft_head(tmp_path: Path, lost: str) -> None:
    """Neither where the head is there but for a part, nor where something else is missing too."""
    folder = save_hybrid(tmp_path / "model", "dense", 1)
    if lost == "model.norm.weight":
        without_head(folder)
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if name != lost}
    save_file(kept, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    shapes = weight_shapes(circuit_of(config, "small"))
    with pytest.raises(ConfigError, match=re.escape("the file isn't whole")):
        check_tensors(opened(folder), shapes)
