"""What a bench sees of a kernel: holes, bytes beside its buffers, changed inputs, whims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from metpipe.engine.microtest import KINDS, Bench, candidate_of, find_places
from metpipe.engine.runners import in_one_launch
from metpipe.errors import ConfigError

KERNEL = "residual.residual_add"


def right(stream, delta, y):
    torch.add(stream, delta, out=y)
    y[y.isnan()] = torch.nan  # the set's one NaN


def bench_of(sets, circuits, launch: Callable[..., object], rule: str = "residual_add") -> Bench:
    """A place of residual_add with the rule's kernel replaced by a plain Python one."""

    def kernel(*, stream, delta, y):
        return lambda: launch(stream, delta, y)

    candidate = candidate_of(sets, rule)
    candidate = dataclasses.replace(candidate, kernels={**candidate.kernels, KERNEL: kernel})
    places = find_places(candidate, {"plain": circuits["plain"]})
    return Bench(candidate, next(place for place in places if place.rows == 3))


def unequal(trial) -> int:
    return sum(
        int((pair.chain.view(torch.int16) != pair.rule.view(torch.int16)).sum())
        for pair in trial.pairs
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_kernel_gives_the_chains_bytes_and_touches_nothing_else(sets, circuits, kind):
    trial = bench_of(sets, circuits, right).trial(kind)
    assert unequal(trial) == 0
    assert trial.moved == {}
    assert trial.unrepeated == ()
    assert [pair.unwritten for pair in trial.pairs] == [0]


def test_a_wrong_sign_of_zero_is_seen(sets, circuits):
    def flushed(stream, delta, y):
        right(stream, delta, y)
        y[y == 0] = 0.0

    assert unequal(bench_of(sets, circuits, flushed).trial("negative zero")) > 0


def test_a_hole_is_counted(sets, circuits):
    def short(stream, delta, y):
        torch.add(stream[:, :-2], delta[:, :-2], out=y[:, :-2])

    (pair,) = bench_of(sets, circuits, short).trial("normal").pairs
    assert pair.unwritten == 3 * 2


def test_a_kernel_that_does_nothing_leaves_everything_unwritten(sets, circuits):
    (pair,) = bench_of(sets, circuits, lambda *tensors: None).trial("normal").pairs
    assert pair.unwritten == pair.chain.numel()


@pytest.mark.parametrize("offset", [-1, 3 * 72], ids=["before", "behind"])
def test_an_element_beside_the_output_is_seen(sets, circuits, offset):
    def wide(stream, delta, y):
        right(stream, delta, y)
        y.as_strided((1,), (1,), y.storage_offset() + offset).fill_(1.5)

    bench = bench_of(sets, circuits, wide)
    for _ in range(2):  # seen each time: the guards are put back
        (label, changed) = next(iter(bench.trial("normal").moved.items()))
        assert label == "around l0.attn.y"
        assert changed in (1, 2)


def test_a_changed_input_is_seen_and_put_back(sets, circuits):
    def greedy(stream, delta, y):
        right(stream, delta, y)
        delta[1] = 0

    bench = bench_of(sets, circuits, greedy)
    trial = bench.trial("normal")
    assert list(trial.moved) == ["l0.attn.o"]
    assert trial.moved["l0.attn.o"] > 100
    assert trial.unrepeated == ()


def test_a_kernel_that_changes_its_mind_is_seen(sets, circuits):
    calls = []

    def moody(stream, delta, y):
        right(stream, delta, y)
        calls.append(1)
        y[0, 0] = float(len(calls))

    trial = bench_of(sets, circuits, moody).trial("normal")
    assert trial.unrepeated == ("l0.attn.y",)


def test_an_output_is_not_exercised_by_zeros_nan_and_inf(sets, circuits):
    bench = bench_of(sets, circuits, right)
    exercised = {kind: bench.trial(kind).pairs[0].is_exercised for kind in KINDS}
    assert exercised["normal"]
    assert exercised["zero rows"]
    one_row = find_places(bench.candidate, {"plain": circuits["plain"]})[0]
    assert one_row.rows == 1
    assert not Bench(bench.candidate, one_row).trial("zero rows").pairs[0].is_exercised


def test_a_pool_row_that_nobody_wrote_does_not_exercise_a_write(sets, circuits):
    candidate = candidate_of(sets, "kv_write")
    place = find_places(candidate, {"plain": circuits["plain"]})[0]
    pairs = {pair.part: pair for pair in Bench(candidate, place).trial("normal").pairs}
    assert pairs.keys() == {"the state attn.k", "the state attn.v"}
    assert all(pair.is_exercised for pair in pairs.values())
    zero = Bench(candidate, place).trial("zero rows").pairs
    assert not any(pair.is_exercised for pair in zero)


def test_a_kernel_that_raises_is_the_users_error(sets, circuits):
    def broken(stream, delta, y):
        raise RuntimeError("out of registers\nand more")

    with pytest.raises(
        ConfigError, match=r"residual_add.* raised when it was launched .*registers$"
    ):
        bench_of(sets, circuits, broken).trial("normal")


def test_a_kernel_that_cannot_be_bound_is_the_users_error(sets, circuits):
    def uncompiled(**tensors):
        raise NotImplementedError("no such instruction")

    candidate = candidate_of(sets, "residual_add")
    candidate = dataclasses.replace(candidate, kernels={**candidate.kernels, KERNEL: uncompiled})
    place = find_places(candidate, {"plain": circuits["plain"]})[0]
    with pytest.raises(ConfigError, match=r"rule residual_add: its kernel .*no such instruction"):
        Bench(candidate, place)


def test_the_same_seed_gives_the_same_values_and_another_gives_others(sets, circuits):
    candidate = candidate_of(sets, "linear")
    place = find_places(candidate, {"plain": circuits["plain"]})[0]
    starts = [Bench(candidate, place, seed).fill("normal") for seed in (1, 1, 2)]
    for label in place.inputs:
        assert torch.equal(starts[0][label], starts[1][label])
        assert not torch.equal(starts[0][label], starts[2][label])


def test_a_step_of_the_sets_launches_and_plain_ones_keeps_its_order(sets):
    """A user's kernel may return any callable."""
    x, y, z = (torch.zeros(1, 32, dtype=torch.bfloat16) for _ in range(3))
    add = sets.builtin.functions[KERNEL]
    first, last = add(stream=x, delta=x, y=y), add(stream=y, delta=y, y=z)
    step = in_one_launch(sets.builtin, (lambda: x.fill_(1.0), first, lambda: y.add_(1.0), last))
    for _ in range(2):
        z.zero_()
        step()
        assert z.tolist() == [[6.0] * 32]


def test_a_set_is_given_the_scratch_memory_that_an_engine_would_give(sets, circuits):
    """Before a kernel is bound: one that finds no room may take another way."""
    asked, given = [], []

    def needed(**sizes):
        asked.append(sizes)
        return 4096

    def kernel(*, stream, delta, y):
        assert len(given) == 1
        return lambda: right(stream, delta, y)

    functions = {
        **sets.builtin.functions,
        "attention.scratch_bytes": needed,
        "workspace.reserve": lambda size, take: given.append(take(size)),
    }
    candidate = candidate_of(sets, "residual_add")
    builtin = dataclasses.replace(candidate.builtin, functions=functions)
    kernels = {**candidate.kernels, KERNEL: kernel}
    candidate = dataclasses.replace(candidate, builtin=builtin, kernels=kernels)
    place = find_places(candidate, {"plain": circuits["plain"]})[0]
    Bench(candidate, place)
    dims = circuits["plain"].dims
    assert {name: asked[0][name] for name in ("q_heads", "kv_heads", "head_dim")} == {
        name: dims[name] for name in ("q_heads", "kv_heads", "head_dim")
    }
    assert asked[0]["max_seq_len"] >= 1
    assert (given[0].dtype, given[0].nbytes) == (torch.uint8, 4096)
