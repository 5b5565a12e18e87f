"""Checkpoints: weights under Hugging Face names, from safetensors, gguf, or a seed."""

from __future__ import annotations

from metpipe.engine.checkpoints.checks import check_tensors
from metpipe.engine.checkpoints.memory_check import (
    check_memory,
    free_memory,
    free_on,
    gib,
    machine_memory,
    place_of,
    required_memory,
)
from metpipe.engine.checkpoints.opening import open_checkpoint
from metpipe.engine.checkpoints.protocol import Checkpoint, ModelSource, PackageSource, Tokenizer
from metpipe.engine.checkpoints.synthetic_weights import synthetic
from metpipe.engine.checkpoints.tokenizer import require_tokenizer

__all__ = [
    "Checkpoint",
    "ModelSource",
    "PackageSource",
    "Tokenizer",
    "check_memory",
    "check_tensors",
    "free_memory",
    "free_on",
    "gib",
    "machine_memory",
    "open_checkpoint",
    "place_of",
    "require_tokenizer",
    "required_memory",
    "synthetic",
]
