"""A small model, opened for a test."""

from __future__ import annotations

from typing import Any

from metpipe.engine.checkpoints import Checkpoint, ModelSource, open_checkpoint
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, one_plus_of_config, open_model, shapes_of_config
from metpipe.engine.pool_sizes import PoolSizes

__all__ = ["CONFIG", "SIZES", "opened", "synthetic_of"]

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "vocab_size": 300,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
}

SIZES = PoolSizes(
    num_blocks=8,
    num_slots=1,
    block_size=16,
    max_seq_len=64,
    max_prefill_rows=32,
    runs=(("decode", 1), ("prefill", 32)),
    snapshot_rows=0,
)


def synthetic_of(source: ModelSource) -> Checkpoint:
    """The synthetic weights of a config, as a run makes them."""
    return open_checkpoint(source, shapes_of=shapes_of_config, one_plus_of=one_plus_of_config)


def opened(
    config: dict[str, Any] = CONFIG,
    *,
    slots: int = 2,
    blocks: int = 40,
    max_rows: int = 64,
    block_size: int = 16,
    max_seq_len: int = 256,
    runs: tuple[tuple[str, int], ...] = (),
    snapshot_rows: int = 0,
    device: str = "cpu",
) -> Model:
    """The model of a config with synthetic weights (seed 7)."""
    checkpoint = synthetic_of(ModelSource(name="small", config=config, seed=7))
    sizes = PoolSizes(
        num_blocks=blocks,
        num_slots=slots,
        block_size=block_size,
        max_seq_len=max_seq_len,
        max_prefill_rows=max_rows,
        runs=(("decode", 1), ("prefill", max_rows), *runs),
        snapshot_rows=snapshot_rows,
    )
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    return open_model(checkpoint, circuit, open_kernel_sets(device, None), sizes)
