"""oracle: the reference's tokens through transformers; is legacy right, and not only repeatable?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from metpipe.diff.logits_file import LogitsFile, Rows
from metpipe.engine.torch_threads import all_cores, torch_threads
from metpipe.nouns import number_of
from metpipe.oracle import (
    Judgement,
    OutsideModel,
    check_free_memory,
    files_for_transformers,
    judge,
    quiet,
    require_oracle,
    transformers_version,
)
from metpipe.oracle.judgement import MAX_FACTOR, RMS_FACTOR
from metpipe.pipeline import StageContext
from metpipe.report.oracle_section import OracleRow, OracleSection
from metpipe.stages.live import live_of
from metpipe.stages.reference import logits_path, read_traces

if TYPE_CHECKING:
    from metpipe.diff.trace import Trace

__all__ = ["require_oracle", "run_oracle"]

Prompts = Mapping[int, "Trace"]
"""Index in the run -> trace of a prompt whose reference logits are kept."""


def run_oracle(context: StageContext) -> Mapping[str, object]:
    """Judge every prompt whose logits the reference kept. Needs load and reference.

    Raises:
        ConfigError: the library is missing or can't read the checkpoint; too little memory.
    """
    require_oracle()
    reference = context.inputs["reference"]
    traces = read_traces(reference)
    kept = {i: trace for i, trace in enumerate(traces) if logits_path(reference, i).exists()}
    judged = _judged(kept, context) if kept else _Judged("none", (), {})
    rows = tuple(_row(traces[index], found) for index, found in judged.prompts.items())
    section = OracleSection(
        name="transformers",
        version=transformers_version(),
        reader=judged.reader,
        prompts=rows,
        passed=bool(rows) and all(row.passed for row in rows),
        sentence="; ".join(_sentences(rows, len(traces), judged.given)),
    )
    return {"oracle": section.model_dump(mode="json")}


class _Judged(NamedTuple):
    """What was read how, and what came of it: index in the run -> judgement."""

    reader: str
    given: tuple[str, ...]
    prompts: Mapping[int, Judgement]


def _judged(kept: Prompts, context: StageContext) -> _Judged:
    """Open the checkpoint with transformers and judge the kept prompts; leaves no file behind."""
    checkpoint, scratch = live_of(context).checkpoint(), context.out / "scratch"
    scratch.mkdir()
    try:
        with quiet(), torch_threads(all_cores()):
            check_free_memory(checkpoint)
            files = files_for_transformers(checkpoint, scratch / "checkpoint")
            outside = OutsideModel.open(files, checkpoint.config)
            prompts = dict(_judge(outside, kept, scratch, context))
    finally:
        shutil.rmtree(scratch)
    return _Judged(files.reader, outside.given, prompts)


def _judge(
    outside: OutsideModel, kept: Prompts, scratch: Path, context: StageContext
) -> Iterator[tuple[int, Judgement]]:
    """All prompts in bf16 first, then in fp32, so that the weights are held once."""
    context.progress.total(2 * len(kept))
    noisy = {}
    for index, trace in kept.items():
        noisy[index] = scratch / f"bf16-{index}.npy"
        _write(noisy[index], outside, trace)
        context.progress.advance()
    outside.widen()
    for index, trace in kept.items():
        fp32_RV = outside.logits(_tokens(trace), len(trace.fed) + 1)
        ours = logits_path(context.inputs["reference"], index)
        steps = len(trace.fed)
        yield index, judge(_rows(ours, steps), fp32_RV, _rows(noisy[index], steps))
        context.progress.advance()


def _write(path: Path, outside: OutsideModel, trace: Trace) -> None:
    logits_RV = outside.logits(_tokens(trace), len(trace.fed) + 1)
    file = LogitsFile.write_new(path, Rows(len(trace.fed)), logits_RV.shape[1])
    file.write(None, logits_RV[:1])
    for step in range(len(trace.fed)):
        file.write(step, logits_RV[step + 1 : step + 2])
    file.write_out()


def _rows(path: Path, steps: int) -> list[torch.Tensor]:
    file = LogitsFile.read_existing(path, Rows(steps))
    return [file.read(step)[0] for step in (None, *range(steps))]


def _tokens(trace: Trace) -> tuple[int, ...]:
    return trace.prompt + trace.tokens


def _row(trace: Trace, judged: Judgement) -> OracleRow:
    difference, noise, tolerance = judged.difference, judged.noise, judged.tolerance
    return OracleRow(
        tokens=len(trace.prompt),
        positions=judged.positions,
        top1_agreement=judged.agreements / judged.positions,
        max_abs_difference=difference.max_abs if difference else None,
        tolerance=tolerance.max_abs,
        noise=noise.max_abs if noise else None,
        rms_difference=difference.rms if difference else None,
        rms_tolerance=tolerance.rms,
        clear=judged.clear,
        clear_flips=judged.clear_flips,
    )


def _sentences(rows: tuple[OracleRow, ...], prompts: int, given: tuple[str, ...]) -> Iterator[str]:
    """What was found, how the tolerance came about, and what the oracle did not see."""
    if not rows:
        yield (
            "nothing was compared: the reference kept logits of none of "
            f"{number_of(prompts, 'prompt')}; raise keep_logits"
        )
        return
    wrong = [(index, row) for index, row in enumerate(rows) if not row.passed]
    yield from (f"prompt {index}: {_fault(row)}" for index, row in wrong)
    if not wrong:
        positions = sum(row.positions for row in rows)
        yield f"the reference is within the tolerance at all of {number_of(positions, 'position')}"
    yield (
        f"tolerated: {MAX_FACTOR:g} x the largest and {RMS_FACTOR:g} x the rms difference of "
        "transformers' own bf16 forward from its fp32 forward (in both the weights are rounded to "
        "bf16, as the engine stores them)"
    )
    if len(rows) < prompts:
        yield f"past keep_logits, so not compared: {prompts - len(rows)} of {prompts} prompts"
    if given:
        yield f"transformers reads no {', '.join(given)} from a .gguf and was given metpipe's"


def _fault(row: OracleRow) -> str:
    if row.noise is None:
        return "transformers' own logits are not all numbers, so no tolerance can be derived"
    if row.max_abs_difference is None:
        return "the reference's logits are not all numbers"
    return (
        f"logits differ by up to {row.max_abs_difference:.3g} (tolerated {row.tolerance:.3g}), "
        f"rms {row.rms_difference:.3g} (tolerated {row.rms_tolerance:.3g}); top-1 is another at "
        f"{row.clear_flips} of {row.clear} clear positions"
    )
