"""A trace counts its steps, rows of logits survive a file, a median leaves out the first step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from metpipe.diff.comparer import Comparer
from metpipe.diff.logits_file import LogitsFile, Rows
from metpipe.diff.timing import median_after_first
from metpipe.diff.trace import Trace

TRACE = Trace(
    prompts=((1, 2, 3),),
    fed=((4,), (5,)),
    prefill_digests=("aa",),
    step_digests=(("bb",), ("cc",)),
    step_states=(("ee",), ("ff",)),
    state_digests={"l0.attn.k": "dd"},
    enqueue_ms=(1.5, 2.5),
    step_ms=(3.0, 4.0),
)


def test_trace_counts_its_steps() -> None:
    assert TRACE.rank == 0
    with pytest.raises(ValueError, match="'step_digests': 1"):
        replace(TRACE, step_digests=(("bb",),))
    with pytest.raises(ValueError, match="'step_states': 3"):
        replace(TRACE, step_states=(("ee",), ("ff",), ("gg",)))


def test_trace_of_one_sequence_has_a_prompt_and_a_stream() -> None:
    assert (TRACE.prompt, TRACE.tokens) == ((1, 2, 3), (4, 5))
    two = replace(TRACE, prompts=((1,), (2,)), fed=((4, 6), (5, 7)))
    for of_one in ("prompt", "tokens"):
        with pytest.raises(ValueError, match="to unpack"):
            getattr(two, of_one)


def awkward_logits() -> torch.Tensor:
    bits = torch.tensor([[0x7FC0, -0x8000, 0x7F81, 1, -1, 0x3F80, 0]]).short()
    return bits.view(torch.bfloat16)


def test_logits_come_back_bit_for_bit(tmp_path: Path) -> None:
    path, form = tmp_path / "logits.npy", Rows(2)
    logits = awkward_logits()
    file = LogitsFile.write_new(path, form, 7)
    file.write(None, logits)
    file.write(1, logits.flip(1))
    file.write(0, logits.roll(1, 1))
    file.write_out()
    read = LogitsFile.read_existing(path, form)
    comparer = Comparer("file")
    comparer.prefill(read.read(None), logits)
    comparer.step(0, read.read(0), logits.roll(1, 1))
    comparer.step(1, read.read(1), logits.flip(1))
    assert comparer.result()
    assert read.read(None).dtype == torch.bfloat16
    stored = np.load(path)
    assert (stored.dtype, stored.shape, stored.nbytes) == (np.uint16, (3, 7), form.num_bytes(7))


def test_each_step_has_its_rows_behind_those_of_the_prefill(tmp_path: Path) -> None:
    path, form = tmp_path / "logits.npy", Rows(num_steps=3, prefill=5, step=2)
    assert (form.total, form.num_bytes(3)) == (11, 66)
    values = torch.arange(33).to(torch.bfloat16).view(11, 3)
    file = LogitsFile.write_new(path, form, 3)
    file.write(2, values[9:])
    file.write(None, values[:5])
    file.write(0, values[5:7])
    with pytest.raises(ValueError, match="row 7 of 11 was never written"):
        file.write_out()
    file.write(1, values[7:9])
    file.write_out()
    read = LogitsFile.read_existing(path, form)
    assert read.read(None).tolist() == values[:5].tolist()
    assert [read.read(step).tolist() for step in range(3)] == values[5:].view(3, 2, 3).tolist()


def test_a_row_that_was_never_written_is_not_given_out(tmp_path: Path) -> None:
    file = LogitsFile.write_new(tmp_path / "logits.npy", Rows(2), 7)
    file.write(None, awkward_logits())
    file.write(1, awkward_logits())
    with pytest.raises(ValueError, match="row 1 was not written yet"):
        file.read(0)
    with pytest.raises(ValueError, match="row 1 of 3 was never written"):
        file.write_out()


def test_logits_of_another_form_are_refused(tmp_path: Path) -> None:
    file = LogitsFile.write_new(tmp_path / "logits.npy", Rows(2, prefill=3), 7)
    takes = r"takes bf16 \[3, 7\]"
    with pytest.raises(ValueError, match=takes):
        file.write(None, torch.zeros(3, 7))
    for shape in ((3, 8), (2, 7), (7,)):
        with pytest.raises(ValueError, match=takes):
            file.write(None, torch.zeros(shape, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"takes bf16 \[1, 7\]"):
        file.write(0, torch.zeros(3, 7, dtype=torch.bfloat16))
    with pytest.raises(IndexError, match="step 2 is not one of 2"):
        file.write(2, awkward_logits())
    with pytest.raises(IndexError, match="step -1"):
        file.write(-1, awkward_logits())


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.zeros((3, 7), dtype=np.float32))
    with pytest.raises(ValueError, match=r"holds float32 \[3, 7\]"):
        LogitsFile.read_existing(tmp_path / "other.npy", Rows(2))
    np.save(tmp_path / "fewer.npy", np.zeros((3, 7), dtype=np.uint16))
    with pytest.raises(ValueError, match="holds 3 rows, and the run has 5"):
        LogitsFile.read_existing(tmp_path / "fewer.npy", Rows(2, step=2))


def test_median_leaves_out_the_first_and_is_the_upper() -> None:
    assert median_after_first([500, 3, 1, 2]) == 2.0
    assert median_after_first([500, 1, 2]) == 2
    assert math.isnan(median_after_first([500]))
    assert math.isnan(median_after_first([]))
