"""The shipped architectures and small configs of the dense families."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from metpipe.circuit import Circuit, Library, Resolved, read_library, resolve_checkpoint
from metpipe.resources import kernels_dir

DATA = Path(__file__).parent / "data"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


@cache
def library() -> Library:
    return read_library(kernels_dir())


def frozen(name: str) -> dict[str, dict[str, object]]:
    """configs.json (as transformers 5.24 writes them, and as published) or tensors.json."""
    return json.loads((DATA / name).read_text())


def config(model_type: str, **keys: object) -> dict[str, object]:
    """A small config.json; a key given as `...` is left out."""
    window = {"sliding_window": None} if model_type == "mistral" else {}
    made = {"model_type": model_type, **SMALL, **window, **keys}
    return {key: value for key, value in made.items() if value is not ...}


def resolve(model_type: str, **keys: object) -> Resolved:
    return resolve_checkpoint(
        config(model_type, **keys), library=library(), source="some/config.json"
    )


def circuit(model_type: str, **keys: object) -> Circuit:
    return resolve(model_type, **keys).circuit
