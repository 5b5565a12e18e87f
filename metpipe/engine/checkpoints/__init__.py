"""Checkpoints: weights under Hugging Face names, from safetensors, gguf, or a seed."""

from __future__ import annotations

from metpipe.engine.checkpoints.checks import check_tensors
from metpipe.engine.checkpoints.opening import open_checkpoint
from metpipe.engine.checkpoints.protocol import Checkpoint, ModelSource, PackageSource, Tokenizer
from metpipe.engine.checkpoints.synthetic_weights import synthetic
from metpipe.engine.checkpoints.tokenizer import require_tokenizer

__all__ = [
    "Checkpoint",
    "ModelSource",
    "PackageSource",
    "Tokenizer",
    "check_tensors",
    "open_checkpoint",
    "require_tokenizer",
    "synthetic",
]
