"""A trace counts its steps, logits survive a file, and the median leaves out the first step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from metpipe.diff.comparer import Comparer
from metpipe.diff.logits_file import LogitsFile, logits_bytes
from metpipe.diff.timing import median_after_first
from metpipe.diff.trace import Trace

TRACE = Trace(
    prompt=(1, 2, 3),
    fed=(4, 5),
    prefill_digest="aa",
    step_digests=("bb", "cc"),
    state_digests={"l0.attn.k": "dd"},
    enqueue_ms=(1.5, 2.5),
    step_ms=(3.0, 4.0),
)


def test_trace_counts_its_steps() -> None:
    assert TRACE.rank == 0
    with pytest.raises(ValueError, match="'step_digests': 1"):
        replace(TRACE, step_digests=("bb",))


def awkward_logits() -> torch.Tensor:
    bits = torch.tensor([0x7FC0, -0x8000, 0x7F81, 1, -1, 0x3F80, 0]).short()
    return bits.view(torch.bfloat16)


def test_logits_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "logits.npy"
    logits = awkward_logits()
    file = LogitsFile.write_new(path, 2, 7)
    file.write_prefill(logits)
    file.write_step(1, logits.flip(0))
    file.write_step(0, logits.roll(1))
    file.write_out()
    read = LogitsFile.read_existing(path)
    comparer = Comparer("file")
    comparer.prefill(read.read_prefill(), logits)
    comparer.step(0, read.read_step(0), logits.roll(1))
    comparer.step(1, read.read_step(1), logits.flip(0))
    assert comparer.result()
    assert read.read_prefill().dtype == torch.bfloat16
    assert read.num_steps == 2
    stored = np.load(path)
    assert (stored.dtype, stored.shape, stored.nbytes) == (np.uint16, (3, 7), logits_bytes(2, 7))


def test_a_row_that_was_never_written_is_not_given_out(tmp_path: Path) -> None:
    file = LogitsFile.write_new(tmp_path / "logits.npy", 2, 7)
    file.write_prefill(awkward_logits())
    file.write_step(1, awkward_logits())
    with pytest.raises(ValueError, match="row 1 was not written yet"):
        file.read_step(0)
    with pytest.raises(ValueError, match="row 1 of 3 was never written"):
        file.write_out()


def test_logits_of_another_form_are_refused(tmp_path: Path) -> None:
    file = LogitsFile.write_new(tmp_path / "logits.npy", 2, 7)
    with pytest.raises(ValueError, match=r"takes bf16 \[7\]"):
        file.write_prefill(torch.zeros(7))
    with pytest.raises(ValueError, match=r"takes bf16 \[7\]"):
        file.write_prefill(torch.zeros(8, dtype=torch.bfloat16))
    with pytest.raises(IndexError, match="step 2 is not one of 2"):
        file.write_step(2, awkward_logits())
    with pytest.raises(IndexError, match="step -1"):
        file.write_step(-1, awkward_logits())
    np.save(tmp_path / "other.npy", np.zeros((3, 7), dtype=np.float32))
    with pytest.raises(ValueError, match=r"holds float32 \[3, 7\]"):
        LogitsFile.read_existing(tmp_path / "other.npy")


def test_median_leaves_out_the_first_and_is_the_upper() -> None:
    assert median_after_first([500, 3, 1, 2]) == 2.0
    assert median_after_first([500, 1, 2]) == 2
    assert math.isnan(median_after_first([500]))
    assert math.isnan(median_after_first([]))
