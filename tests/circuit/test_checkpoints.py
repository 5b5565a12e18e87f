"""The published checkpoints in conf/model: what each stores, in the formats that it declares."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from metpipe.circuit import Circuit, resolve_checkpoint, weight_bytes, weight_matrix
from metpipe.circuit.formats import tensor_bytes
from metpipe.circuit.vocabulary import OPS
from metpipe.resources import conf_dir

from .families import library


@cache
def section(choice: str) -> dict[str, Any]:
    return yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())


@cache
def circuit(choice: str) -> Circuit:
    return resolve_checkpoint(section(choice)["config"], library=library(), source=choice).circuit


def stored(made: Circuit) -> int:
    """Bytes of the embedding and of each matrix with scales, once; a draft head stores none."""
    total, seen = 0, set()
    for node in made.nodes:
        if node.binding in seen or OPS[node.op].weight not in ("matrix", "table"):
            continue
        if node.section == "draft" and node.op == "lm_head":
            continue
        seen.add(node.binding)
        if node.op == "embed":
            total += tensor_bytes("bf16", made.dims["vocab"], made.edges[node.outputs[0]].dim)
            continue
        experts = made.dims["experts"] if OPS[node.op].per_expert else 1
        assert node.weight_format is not None
        total += experts * weight_bytes(node.weight_format, *weight_matrix(made, node))
    return total


@pytest.mark.parametrize(
    ("choice", "checkpoint_id", "total"),
    [
        ("qwen3_8_27b_nvfp4", "unsloth/Qwen3.8-27B-NVFP4", 22_490_993_088),
        ("qwen3_6_35b_a3b_fp8", "Qwen/Qwen3.6-35B-A3B-FP8", 36_563_511_552),
        ("qwen3_6_35b_a3b_nvfp4", "nvidia/Qwen3.6-35B-A3B-NVFP4", 22_511_932_116),
        (
            "nemotron_3_nano_30b_a3b_nvfp4",
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
            19_322_023_744,
        ),
    ],
)
def test_stored_weights(choice: str, checkpoint_id: str, total: int) -> None:
    assert section(choice)["checkpoint_id"] == checkpoint_id
    assert stored(circuit(choice)) == total


def test_stored_weights_of_the_122b() -> None:
    """Published as parts rounded to a tenth of a MiB, whose sum this is."""
    assert stored(circuit("qwen3_5_122b_a10b_nvfp4")) / 2**20 == pytest.approx(76828.05, abs=0.1)
