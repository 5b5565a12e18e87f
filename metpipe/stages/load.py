"""load: opens checkpoint, circuit and model, and keeps what a report states of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from metpipe.engine.weights import weight_shapes
from metpipe.pipeline import StageContext
from metpipe.stages.live import live_of
from metpipe.stages.records import to_json

__all__ = ["run_load"]


def run_load(context: StageContext) -> Mapping[str, object]:
    """Read the weights once; the model stays open for the stages behind this one."""
    live = live_of(context)
    checkpoint, circuit = live.checkpoint(), live.circuit()
    shapes = weight_shapes(circuit, checkpoint.tensors)
    context.progress.total(len(shapes))
    model = live.model(context.progress)
    return {
        "model": checkpoint.name,
        "source": checkpoint.source,
        "reader": checkpoint.reader,
        "checkpoint_digest": checkpoint.digest(),
        "arch": circuit.arch,
        "model_type": str(checkpoint.config["model_type"]),
        "layers": len(circuit.layer_kinds),
        "vocab_size": model.vocab_size,
        "parameters": sum(map(prod, shapes.values())),
        "tensors": len(shapes),
        "unread_tensors": sorted(set(checkpoint.tensors) - set(shapes)),
        "prompts": [len(prompt) for prompt in live.prompts()],
        "pools": to_json(live.sizes()),
        "kernel_set": live.sets.builtin.name,
        "kernel_digests": live.sets.digests,
    }
