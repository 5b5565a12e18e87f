"""Checks a checkpoint against what the circuit binds, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.engine.checkpoints.protocol import Checkpoint, Shape
from metpipe.errors import ConfigError
from metpipe.nouns import number_of

__all__ = ["check_tensors"]

DRAFT_HEAD = "mtp."
"""How the tensors of a draft head begin."""


def check_tensors(checkpoint: Checkpoint, shapes: Mapping[str, Shape]) -> list[str]:
    """The checkpoint's tensors that nothing binds, sorted; the caller says what becomes of them.

    `shapes`: tensor name -> shape that the circuit binds. ConfigError names the first tensor that
    is missing or of another shape, and how many more are.
    """
    if not checkpoint.has_weights:
        raise ConfigError(
            f"{checkpoint.source}: has a config but no weights, which is enough to plan "
            "(pipeline=memory) but not to run; give a checkpoint with its safetensors"
        )
    found = checkpoint.tensors
    faults = [
        _fault(name, shape, found.get(name))
        for name, shape in shapes.items()
        if found.get(name) != tuple(shape)
    ]
    if faults:
        more = (
            f" (and {number_of(len(faults) - 1, 'tensor')} more that don't fit)"
            if len(faults) > 1
            else ""
        )
        raise ConfigError(f"{checkpoint.source}: {faults[0]}{more}; {_advice(shapes, found)}")
    return sorted(set(found) - set(shapes))


def _advice(shapes: Mapping[str, Shape], found: Mapping[str, Shape]) -> str:
    """What to do; a folder saved without the draft head that its config promises is a known case.

    transformers loads no draft head (its tensors are `mtp.*`) and so saves none, config unchanged.
    """
    faulty = [name for name, shape in shapes.items() if found.get(name) != tuple(shape)]
    has_head = any(name.startswith(DRAFT_HEAD) for name in found)
    if not has_head and all(name.startswith(DRAFT_HEAD) for name in faulty):
        return (
            "the weights have no draft head, and only that is missing: set mtp_num_hidden_layers "
            "to 0 in the config to run the model without it"
        )
    return "config and weights are of different models, or the file isn't whole"


def _fault(name: str, expected: Shape, found: Shape | None) -> str:
    if found is None:
        return f"tensor {name} is missing, expected {list(expected)}"
    return f"tensor {name} has shape {list(found)}, expected {list(expected)}"
