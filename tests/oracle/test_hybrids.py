"""The hybrid families: right ones pass the oracle, each fault of ours fails; published shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from metpipe.engine.opening import circuit_of
from metpipe.engine.weights import Weights, weight_shapes
from metpipe.oracle import quiet
from metpipe.report.oracle_section import OracleSection
from metpipe.resources import conf_dir
from tests.circuit.hybrids import SIZES, published
from tests.engine.hybrid_configs import CONFIGS
from tests.engine.hybrid_models import save_hybrid
from tests.oracle.extra import needs_transformers
from tests.oracle.runs import Decoded, decode, live_of

pytestmark = needs_transformers

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Each checkpoint is saved once."""
    root, made = tmp_path_factory.mktemp("hybrids"), dict[tuple[str, int], Path]()

    def save(name: str, seed: int) -> Path:
        if (name, seed) not in made:
            made[name, seed] = save_hybrid(root / str(len(made)), name, seed)
        return made[name, seed]

    return save


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_model_made_by_transformers_passes(saved, tmp_path, name, seed):
    section = decode(live_of(f"model.checkpoint={saved(name, seed)}"), tmp_path).oracle()
    assert section.passed, section.sentence
    assert (section.name, section.reader) == ("transformers", "safetensors")
    assert [(row.tokens, row.positions) for row in section.prompts] == [(23, 9), (64, 9)]
    # Where one of the experts is chosen on a rounding, the noise is that of another forward.
    assert min(row.rms_tolerance for row in section.prompts) < 0.35
    assert all(0 < row.rms_difference < 0.2 for row in section.prompts)


@pytest.mark.parametrize("choice", ["tiny_hybrid", "tiny_qwen3_5"])
def test_synthetic_hybrid_is_written_for_transformers(tmp_path, choice):
    section = decode(live_of(f"model={choice}"), tmp_path).oracle()
    assert section.passed, section.sentence
    assert section.reader == "safetensors, of synthetic weights"
    assert all(row.rms_difference < 0.15 for row in section.prompts)


def failed(section: OracleSection) -> bool:
    """Whether the section fails, and its sentence says with which numbers."""
    return not section.passed and "logits differ by up to" in section.sentence


def misread(checkpoint: Path, folder: Path, **config: object) -> Decoded:
    """Decode a flat checkpoint with keys of its config replaced for our engine alone."""
    live = live_of(f"model.checkpoint={checkpoint}")
    right = live.checkpoint()
    live._checkpoint = dataclasses.replace(right, config={**right.config, **config})
    return decode(live, folder)


ROPE = CONFIGS["dense"]["rope_parameters"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("dense", {"rms_norm_eps": 1e-2}),
        ("dense", {"rope_parameters": {**ROPE, "rope_theta": 2000.0}}),
        ("dense", {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}}),
        ("experts", {"num_experts_per_tok": 2}),
    ],
    ids=["epsilon", "theta doubled", "fewer rotary channels", "fewer experts"],
)
def test_config_that_we_misread_fails(saved, tmp_path, name, wrong):
    assert failed(misread(saved(name, 0), tmp_path, **wrong).oracle())


def _matrices(weights: Weights, part: str) -> list[torch.Tensor]:
    return [matrix for binding, matrix in weights.matrices.items() if part in binding[-1]]


def _tensors(weights: Weights, part: str) -> list[torch.Tensor]:
    return [tensor for name, tensor in weights.tensors.items() if name.endswith(part)]


def _zero_decays(weights: Weights) -> list[torch.Tensor]:
    return [tensor.zero_() for tensor in _tensors(weights, "A_log")]


def _zero_steps(weights: Weights) -> list[torch.Tensor]:
    return [tensor.zero_() for tensor in _tensors(weights, "dt_bias")]


def _reversed_taps(weights: Weights) -> list[torch.Tensor]:
    return [tensor.copy_(tensor.flip(-1)) for tensor in _tensors(weights, "conv1d.weight")]


def _out_norm_by_one_plus(weights: Weights) -> list[torch.Tensor]:
    return [matrix.add_(1.0) for matrix in _matrices(weights, "linear_attn.norm")]


def _norms_as_stored(weights: Weights) -> list[torch.Tensor]:
    return [matrix.sub_(1.0) for matrix in _matrices(weights, "input_layernorm")]


def _gates_before_queries(weights: Weights) -> list[torch.Tensor]:
    """Swapped within each head."""
    d = CONFIGS["dense"]["head_dim"]
    return [
        matrix.copy_(matrix.view(-1, 2, d, matrix.shape[1]).flip(1).reshape(matrix.shape))
        for matrix in _matrices(weights, "self_attn.q_proj")
    ]


def _betas_for_decays(weights: Weights) -> list[torch.Tensor]:
    return [
        matrix.copy_(matrix.view(2, -1, matrix.shape[1]).flip(0).reshape(matrix.shape))
        for matrix in _matrices(weights, "linear_attn.in_proj_a")
    ]


def _experts_off_by_one(weights: Weights) -> list[torch.Tensor]:
    return [matrix.copy_(matrix.roll(1, 0)) for matrix in _matrices(weights, "experts.*.down_proj")]


def _up_before_gate(weights: Weights) -> list[torch.Tensor]:
    return [
        matrix.copy_(matrix.roll(matrix.shape[1] // 2, 1))
        for matrix in _matrices(weights, "experts.*.up_proj")
    ]


def _shared_expert_always_open(weights: Weights) -> list[torch.Tensor]:
    return [matrix.zero_() for matrix in _matrices(weights, "shared_expert_gate")]


DENSE_FAULTS = (
    _zero_decays, _zero_steps, _reversed_taps, _out_norm_by_one_plus, _norms_as_stored,
    _gates_before_queries, _betas_for_decays,
)  # fmt: skip
EXPERT_FAULTS = (_experts_off_by_one, _up_before_gate, _shared_expert_always_open)


@pytest.mark.parametrize(
    ("name", "fault"),
    [*(("dense", fault) for fault in DENSE_FAULTS), *(("experts", f) for f in EXPERT_FAULTS)],
)
def test_weight_that_we_hold_wrongly_fails(saved, tmp_path, name, fault):
    live = live_of(f"model.checkpoint={saved(name, 0)}")
    assert fault(live.model().weights)
    assert failed(decode(live, tmp_path).oracle())


def _published() -> dict[str, Mapping[str, Any]]:
    """The published shapes, the declared precision left out: it is of the stored weights."""
    found: dict[str, Mapping[str, Any]] = {name: published(name) for name in SIZES}
    for path in sorted((conf_dir() / "model").glob("qwen3_[568]_*.yaml")):
        config = yaml.safe_load(path.read_text())["config"]
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        found[path.stem] = plain
    return found


@pytest.mark.parametrize("name", _published())
def test_published_shapes_are_those_of_transformers_model(name):
    """Every tensor of the text model by name and shape, without weights; and none beside them."""
    config = _published()[name]
    shapes = weight_shapes(circuit_of(config, name), Everything())
    ours = {key: shape for key, shape in shapes.items() if not key.startswith("mtp.")}
    assert len(ours) < len(shapes)
    with quiet(), torch.device("meta"):
        from transformers import AutoConfig, AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config))
    theirs = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert ours == {key: shape for key, shape in theirs.items() if "visual" not in key}


class Everything:
    """A checkpoint that stacks its experts, as transformers' model does."""

    def __contains__(self, name: object) -> bool:
        return True
