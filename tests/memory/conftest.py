"""Models and points that the memory tests share; the kernel set is a small one of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Select, circuit_from_config
from metpipe.memory import Planned, Point, Serve, Workload, read_devices, read_kernel_set
from metpipe.resources import kernels_dir

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TINY = QWEN3_8B | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 250,
    "tie_word_embeddings": True,
}
SERVE = Serve(
    max_seq_len=40960,
    max_batch_size=128,
    gpu_memory_utilization=0.85,
    kv_cache_dtype="bf16",
    ssm_h_dtype="f32",
    block_size=16,
    max_prefill_tokens=8192,
)


@pytest.fixture(scope="session")
def devices():
    return read_devices(kernels_dir() / "DEVICES.toml")


@pytest.fixture(scope="session")
def cpu_set():
    return read_kernel_set(kernels_dir() / "cpu")


@pytest.fixture(scope="session")
def big(cpu_set, devices):
    """Qwen3-8B with one kernel per op on a B200: 8 sequences of 4096 + 1024 tokens."""
    planned = Planned(circuit_from_config(QWEN3_8B, kernels_dir()), cpu_set, Select.reference())
    return Point(planned, devices.by_id["b200"], SERVE, Workload(4096, 1024, 8))


@pytest.fixture(scope="session")
def tiny(cpu_set, devices):
    """Three tied layers with every rule on a CPU of 1 GiB."""
    planned = Planned(circuit_from_config(TINY, kernels_dir()), cpu_set, Select.all())
    cpu = replace(devices.by_id["cpu"], memory_bytes=2**30)
    return Point(planned, cpu, SERVE, Workload(100, 20, 3))


@pytest.fixture(scope="session")
def on():
    """A point with another device, serve flags, load."""

    def changed(point, *, device=None, load=None, serve=None, **fields):
        return replace(
            point,
            device=device or point.device,
            serve=replace(point.serve, **(serve or {})),
            workload=replace(point.workload, **(load or {})),
            **fields,
        )

    return changed
