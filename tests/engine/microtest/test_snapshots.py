"""A bench of a recurrent rule: a float32 state per slot, and what the rows leave of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from metpipe.circuit import Circuit
from metpipe.engine.microtest import KINDS, Bench, candidate_of, find_places
from metpipe.engine.opening import circuit_of
from tests.circuit.hybrids import TINY

KERNEL = "delta.recurrence_norm"
LABEL = "snapshots l0.gdn.h"


@pytest.fixture(scope="module")
def hybrid() -> dict[str, Circuit]:
    return {"hybrid": circuit_of(TINY["qwen3_5_text"], "a hybrid")}


def bench_of(sets, hybrid, mode: str, change=lambda step_rows, steps: step_rows) -> Bench:
    """Of recurrence_norm at 5 rows, with another `step_rows` than the step's."""
    candidate = candidate_of(sets, "recurrence_norm")
    right = candidate.kernels[KERNEL]

    def kernel(*, step_rows, steps, **given):
        return right(step_rows=change(step_rows, steps), steps=steps, **given)

    candidate = dataclasses.replace(candidate, kernels={**candidate.kernels, KERNEL: kernel})
    places = find_places(candidate, hybrid)
    return Bench(candidate, next(p for p in places if p.rows == 5 and p.mode == mode))


def snapshots_of(trial):
    return next(pair for pair in trial.pairs if pair.label == LABEL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["decode", "verify", "verify_batch"])
def test_the_shipped_rule_gives_the_chains_states_and_snapshots(sets, hybrid, mode, kind):
    trial = bench_of(sets, hybrid, mode).trial(kind)
    assert {pair.part for pair in trial.pairs} == {
        "output 0 of element 1 (gated_rms_norm)",
        "the state gdn.h",
        "the snapshots of the state gdn.h",
    }
    for pair in trial.pairs:
        assert torch.equal(pair.chain.view(torch.int16), pair.rule.view(torch.int16))
    assert trial.moved == {}
    assert trial.unrepeated == ()
    assert kind != "normal" or snapshots_of(trial).is_exercised is (mode != "decode")


def test_states_are_float32_of_all_slots_with_bits_that_no_bf16_has(sets, hybrid):
    bench = bench_of(sets, hybrid, "decode")
    start = bench.fill("normal")["state l0.gdn.h"]
    assert start.dtype == torch.float32
    assert start.shape[0] == 6
    assert start[:-1].isfinite().all()
    assert not torch.equal(start[:-1], start[:-1].bfloat16().float())
    assert start[-1].isnan().all(), "the dummy slot is nobody's"


def test_snapshots_that_a_kernel_leaves_out_are_unwritten(sets, hybrid):
    bench = bench_of(sets, hybrid, "verify", lambda rows, steps: torch.full_like(rows, -1))
    pair = snapshots_of(bench.trial("normal"))
    assert pair.unwritten >= 2 * 4 * (pair.chain.shape[1] - 1)


def test_a_snapshot_in_the_row_of_another_is_seen(sets, hybrid):
    bench = bench_of(sets, hybrid, "verify", lambda rows, steps: rows.roll(1))
    pair = snapshots_of(bench.trial("normal"))
    assert not torch.equal(pair.chain, pair.rule)


def test_a_snapshot_in_nobodys_row_is_seen(sets, hybrid):
    bench = bench_of(
        sets, hybrid, "decode", lambda rows, steps: torch.full_like(rows, len(steps) - 1)
    )
    pair = snapshots_of(bench.trial("normal"))
    assert pair.chain.isnan().all()
    assert pair.rule.isfinite().any()
