"""Groups of the hybrids on a bench: values that the ops may be given, and faults that are seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from metpipe.circuit import Circuit
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.microtest import (
    AWKWARD,
    Bench,
    Place,
    at_realistic_size,
    candidate_of,
    find_places,
)
from metpipe.engine.microtest.memory import tensor_label
from metpipe.engine.opening import circuit_of
from tests.engine.hybrid_models import CONFIGS

HYBRIDS = ("recurrent", "experts")
Launch = Callable[[], None]


def places_of(sets: KernelSets, circuits: dict[str, Circuit], rule: str, **wanted: Any) -> Place:
    """The first place of a rule that has these facts, in the circuit with experts."""
    found = find_places(candidate_of(sets, rule), {"experts": circuits["experts"]})
    return next(
        place
        for place in found
        if all(getattr(place, name) == value for name, value in wanted.items())
    )


def bench_of(
    sets: KernelSets,
    place: Place,
    rule: str,
    wrapped: Callable[..., Launch] | None = None,
) -> Bench:
    """The place's bench; `wrapped(kernel, **arguments)` stands for the rule's kernel."""
    candidate = candidate_of(sets, rule)
    (kernel,) = candidate.rule.kernels
    if wrapped is not None:
        right = candidate.kernels[kernel.name]

        def changed(**arguments: Any) -> Launch:
            return wrapped(right, **arguments)

        candidate = dataclasses.replace(
            candidate, kernels={**candidate.kernels, kernel.name: changed}
        )
    return Bench(candidate, place)


def unequal(trial: Any) -> set[str]:
    """The parts whose bytes differ."""
    return {
        pair.part
        for pair in trial.pairs
        if not torch.equal(pair.chain.view(torch.int16), pair.rule.view(torch.int16))
    }


@pytest.mark.parametrize("mode", ["decode", "verify", "verify_batch"])
def test_a_recurrence_stays_finite_over_many_rows(sets, circuits, mode):
    place = places_of(sets, circuits, "recurrence_norm", mode=mode, rows=67)
    trial = bench_of(sets, place, "recurrence_norm").trial("normal")
    assert unequal(trial) == set()
    parts = {pair.part: pair for pair in trial.pairs}
    state = parts.pop("the state gdn.h").chain
    assert state[:-1].isfinite().all()
    if mode != "decode":
        kept = parts.pop("the snapshots of the state gdn.h").chain
        assert kept[:-1].isfinite().all()
        assert kept.shape[0] == (67 if mode == "verify" else 67 - 23 + 1)
    assert parts["output 0 of element 1 (gated_rms_norm)"].chain.isfinite().all()


def test_decays_shrink_and_steps_are_shares(sets, circuits):
    place = places_of(sets, circuits, "gdn_recurrence", mode="verify", rows=17)
    bench = bench_of(sets, place, "gdn_recurrence")
    qkv, decay, beta = place.inputs
    for kind in ("normal", "mixed exponents", "random bits"):
        start = bench.fill(kind)
        for edge, low, high in ((decay, -torch.inf, 0.0), (beta, 0.0, 1.0)):
            values = start[edge][~start[edge].isnan()]
            assert values.numel() > 0
            assert bool(((values >= low) & (values <= high)).all())
    heads = bench.fill("normal")[qkv][:, :37]
    assert 0.3 < float(heads.norm(dim=1).mean()) < 3


def test_experts_are_distinct_in_a_row_and_one_of_them_is_crowded(sets, circuits):
    place = places_of(sets, circuits, "expert_gate_up_silu", rows=67)
    bench = bench_of(sets, place, "expert_gate_up_silu")
    ids = bench.fill("normal")[place.inputs[1]]
    assert ids.shape == (67, 3)
    assert ids.dtype == torch.int32
    assert set(ids.flatten().tolist()) == set(range(7))
    assert all(len(set(row)) == 3 for row in ids.tolist())
    assert int((ids == 6).sum()) > 55


def test_small_tensors_are_filled_and_only_read(sets, circuits):
    place = places_of(sets, circuits, "linear_gates", rows=5)
    names = [tensor.name for node in place.nodes for tensor in node.tensors]
    assert [name.rpartition(".")[2] for name in names] == ["A_log", "dt_bias"]

    def greedy(kernel: Any, **arguments: Any) -> Launch:
        right = kernel(**arguments)

        def launch() -> None:
            right()
            arguments["a_log"][1] += 1

        return launch

    trial = bench_of(sets, place, "linear_gates", greedy).trial("normal")
    assert trial.moved == {tensor_label(names[0]): 1}
    start = bench_of(sets, place, "linear_gates").fill("normal")
    assert start[tensor_label(names[0])].unique().numel() == 3


def test_a_state_that_is_not_left_behind_is_seen(sets, circuits):
    def forgetful(kernel: Any, *, step_rows: torch.Tensor, **arguments: Any) -> Launch:
        return kernel(step_rows=torch.full_like(step_rows, -1), **arguments)

    for rule, state in (("recurrence_norm", "gdn.h"), ("conv_l2_norm", "gdn.conv")):
        place = places_of(sets, circuits, rule, mode="verify", rows=5)
        trial = bench_of(sets, place, rule, forgetful).trial("normal")
        assert unequal(trial) == {f"the snapshots of the state {state}"}


def test_a_state_of_another_slot_is_seen(sets, circuits):
    def shifted(kernel: Any, *, slots: torch.Tensor, **arguments: Any) -> Launch:
        return kernel(slots=(slots + 1) % (arguments["h"].shape[0] - 1), **arguments)

    place = places_of(sets, circuits, "recurrence_norm", mode="verify_batch", rows=5)
    trial = bench_of(sets, place, "recurrence_norm", shifted).trial("normal")
    assert "the state gdn.h" in unequal(trial)


def test_experts_combined_in_another_order_are_seen(sets, circuits):
    """By sums that overflow in one order only; bf16 hides the others' last bits."""

    def backwards(
        kernel: Any, *, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, **others: Any
    ) -> Launch:
        rows, count = ids.shape
        given = {
            "x": torch.empty_like(x), "ids": torch.empty_like(ids),
            "weights": torch.empty_like(weights),
        }  # fmt: skip
        right = kernel(**given, **others)

        def launch() -> None:
            given["x"].view(rows, count, -1).copy_(x.view(rows, count, -1).flip(1))
            given["ids"].copy_(ids.flip(1))
            given["weights"].copy_(weights.flip(1))
            right()

        return launch

    for rule in ("down_blend", "shared_down_blend"):
        place = places_of(sets, circuits, rule, rows=17)
        right = bench_of(sets, place, rule)
        assert unequal(right.trial("normal")) == set()
        trial = bench_of(sets, place, rule, backwards).trial("huge and denormal")
        assert {part.partition(" (")[2] for part in unequal(trial)} == {"blend)"}


def test_the_expert_of_another_row_is_seen(sets, circuits):
    def rolled(kernel: Any, *, ids: torch.Tensor, **others: Any) -> Launch:
        return kernel(ids=ids.roll(1, 0), **others)

    place = places_of(sets, circuits, "expert_gate_up_silu", rows=5)
    # Bound before it is filled, so that the rolled copy holds what the fill before left there.
    bench = bench_of(sets, place, "expert_gate_up_silu", rolled)
    assert unequal(bench.trial("normal")) != set()


@pytest.mark.parametrize("name", [*AWKWARD, *CONFIGS])
def test_every_config_has_a_realistic_size(name):
    config = AWKWARD.get(name) or CONFIGS[name]
    small, large = circuit_of(config, name), circuit_of(at_realistic_size(config), name)
    assert large.arch == small.arch
    assert large.dims.keys() == small.dims.keys()
    assert {node.op for node in large.nodes} == {node.op for node in small.nodes}
    assert large.dims["hidden"] >= 576
    for switch in ("tie", "mtp", "nested", "attn_bias"):
        assert large.dims.get(switch) == small.dims.get(switch)
