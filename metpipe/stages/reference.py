"""reference: the legacy forward, greedy; it fixes the token stream that every later run is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from metpipe.diff.feeding import Greedy
from metpipe.diff.logits_file import LogitsFile, logits_bytes
from metpipe.diff.trace import Trace
from metpipe.engine.protocols import RunningForward, StatefulCore
from metpipe.pipeline import StageContext
from metpipe.stages.decode import OnLogits, UnownedBytes, decode_prompt
from metpipe.stages.live import LEGACY, live_of
from metpipe.stages.records import read_result, restore, to_json

__all__ = ["logits_path", "read_traces", "run_reference", "traces_of", "writer"]


def run_reference(context: StageContext) -> Mapping[str, object]:
    """Decode every prompt greedily; keep traces, and logits up to `keep_logits` bytes."""
    live = live_of(context)
    model, prompts, steps = live.model(), live.prompts(), live.run.steps
    kept = prompts_kept(len(prompts), steps, model.vocab_size, live.run.keep_logits)
    context.progress.total(len(prompts) * steps)
    forward = model.forward(LEGACY)
    traces, unowned = [], []
    try:
        for index, prompt in enumerate(prompts):
            path = logits_path(context.out, index) if index < kept else None
            trace, bytes_ = _decode(model, forward, prompt, steps, path, context)
            traces.append(trace)
            unowned.append(bytes_)
        return {
            "traces": to_json(tuple(traces)),
            "unowned": to_json(tuple(unowned)),
            "logits_kept": kept,
            "disclosure": to_json(forward.disclose()),
            "plans_digest": None,
        }
    finally:
        forward.close()


def prompts_kept(num_prompts: int, steps: int, vocab: int, keep_bytes: int) -> int:
    """Leading prompts whose logits (bf16, prefill and each step) fit into `keep_bytes`."""
    return min(num_prompts, keep_bytes // logits_bytes(steps, vocab))


def _decode(
    model: StatefulCore,
    forward: RunningForward,
    prompt: Sequence[int],
    steps: int,
    path: Path | None,
    context: StageContext,
) -> tuple[Trace, UnownedBytes]:
    file = LogitsFile.write_new(path, steps, model.vocab_size) if path else None
    result = decode_prompt(
        model,
        forward,
        prompt,
        steps,
        Greedy(),
        on_logits=writer(file) if file else nothing,
        hash_bytes=model.hash_bytes,
        check_steps=context.params["state_check"] == "step",
        tick=context.progress.advance,
    )
    if file is not None:
        file.write_out()
    return result


def writer(file: LogitsFile) -> OnLogits:
    """Writes each step's logits to the file."""

    def write(step: int | None, logits_V: torch.Tensor) -> None:
        if step is None:
            file.write_prefill(logits_V)
        else:
            file.write_step(step, logits_V)

    return write


def nothing(step: int | None, logits_V: torch.Tensor) -> None:
    """Past the keep limit only digests stay."""


def logits_path(folder: Path, prompt: int) -> Path:
    """Where a prompt's logits lie in the reference's folder."""
    return folder / f"logits-{prompt}.npy"


def read_traces(folder: Path) -> tuple[Trace, ...]:
    """The traces that a run's stage kept."""
    return traces_of(read_result(folder))


def traces_of(record: Mapping[str, Any]) -> tuple[Trace, ...]:
    """The traces in a run's record."""
    return restore(tuple[Trace, ...], record["traces"])
