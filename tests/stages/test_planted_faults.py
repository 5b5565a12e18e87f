"""Faults planted in the built-in kernels of one process, and what a whole diff says of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.errors import Exit
from metpipe.pipeline import LineBoard, Pipeline, Store
from metpipe.stages import compare as compare_stage
from metpipe.stages.live import OPEN, Live
from metpipe.stages.plan import plan
from tests.engine.opened import CONFIG
from tests.runs import composed

Kernel = Callable[..., Callable[[], None]]
RUN = ("pipeline=diff", "steps=6", "prompts=2", "slots=2")


@pytest.fixture(autouse=True)
def _no_model_of_an_earlier_test():
    OPEN.close()
    yield
    OPEN.close()


def diff(folder: Path, faults: Mapping[str, Callable[[Kernel], Kernel]], *overrides: str) -> Any:
    """The compare stage's record of a run whose built-in kernels are wrapped by `faults`."""
    run = composed(*RUN, *overrides)
    model = run.model.model_copy(update={"name": "small", "config": CONFIG})
    run = run.model_copy(update={"model": model})
    live = Live(run, planted(open_kernel_sets("cpu", None), faults))
    pipeline = Pipeline(plan(run), facts={"faults": sorted(faults)})
    store = Store(folder)
    for event in pipeline.run(store, LineBoard(Console(quiet=True)), live=live):
        assert event.error is None, f"{event.stage}: {event.error!r}"
    return pipeline.result(store, "compare")


def planted(sets: KernelSets, faults: Mapping[str, Callable[[Kernel], Kernel]]) -> KernelSets:
    """The sets with some kernels wrapped; launched one by one, so that a wrapper is a launch."""
    functions = {k: v for k, v in sets.builtin.functions.items() if k != "team.together"}
    for name, fault in faults.items():
        functions[name] = fault(functions[name])
    return dataclasses.replace(sets, builtin=dataclasses.replace(sets.builtin, functions=functions))


def after_launch(act: Callable[[int, dict[str, Any]], None]) -> Callable[[Kernel], Kernel]:
    """A wrapper that calls `act(launch number, arguments)` after each launch of a kernel."""
    count = 0

    def wrap(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            launch = kernel(**arguments)

            def run() -> None:
                nonlocal count
                launch()
                act(count, arguments)
                count += 1

            return run

        return bind

    return wrap


def flip(tensor: torch.Tensor) -> None:
    """Flip the highest mantissa bit of the first 16 elements: enough to reach the logits."""
    tensor.view(-1).view(torch.int16)[:16] ^= 0x40


def test_without_a_fault_the_diff_passes(tmp_path):
    record = diff(tmp_path, {})
    assert (record["outcome"], record["reasons"]) == (Exit.PASS.name, [])


def test_a_racing_reference_proves_nothing(tmp_path):
    def race(number: int, arguments: dict[str, Any]) -> None:
        if number % 29 == 28:
            flip(arguments["y"])

    record = diff(tmp_path, {"activation.silu_mul": after_launch(race)})
    assert record["outcome"] == "INCONCLUSIVE"
    assert "legacy-repeat" in record["reasons"][0]
    assert "does not equal itself" in record["reasons"][0]


def test_a_wrong_fused_kernel_is_found_at_its_step(tmp_path):
    # Two adds a layer; the last one of a prefill is not fused, since the head reads one row of it.
    prefill, step = 3, 4

    def wrong(number: int, arguments: dict[str, Any]) -> None:
        if number == prefill + 3 * step:
            flip(arguments["total"])

    record = diff(tmp_path, {"norm.add_rms_norm": after_launch(wrong)})
    assert record["outcome"] == "FAIL"
    assert record["reasons"][0].startswith("prompt 0, circuit: prefill equal true")
    assert "(first at 3)" in record["reasons"][0]
    cases = {(c["name"], c["comparison"]["variant"]): c for c in record["evidence"]["cases"]}
    differing = cases["prompt 0", "circuit"]["comparison"]["differences"]
    assert differing[0]["step"] == 3
    assert cases["prompt 1", "circuit"]["comparison"]["differences"] == []


def neighbours_write(number: int, arguments: dict[str, Any]) -> None:
    """Flip a bit in the last block before the dummy: nobody's, under these prompts."""
    pool = arguments["v_pool"]
    flip(pool[pool.shape[0] - 2 * arguments["block_size"] :])


def test_a_write_into_a_block_that_nobody_owns_fails(tmp_path):
    def once(number: int, arguments: dict[str, Any]) -> None:
        if number == 5:
            neighbours_write(number, arguments)

    record = diff(tmp_path, {"fused.norm_rope_write": after_launch(once)})
    assert record["outcome"] == "FAIL"
    (reason,) = record["reasons"]
    assert "prompt 0, circuit: bytes that no step owns moved (l1.attn.v)" in reason


@pytest.mark.parametrize(("check", "outcome"), [("ends", "PASS"), ("step", "FAIL")])
def test_a_write_that_is_undone_is_seen_where_each_step_is_checked(tmp_path, check, outcome):
    def there_and_back(number: int, arguments: dict[str, Any]) -> None:
        if number in (5, 9):
            neighbours_write(number, arguments)

    fault = {"fused.norm_rope_write": after_launch(there_and_back)}
    record = diff(tmp_path, fault, f"state_check={check}")
    assert record["outcome"] == outcome
    if check == "step":
        assert "first after step 1, circuit: bytes that no step owns" in record["reasons"][0]


def test_a_forward_that_does_not_read_its_token_is_blind(tmp_path):
    def frozen(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            ids = arguments["token_ids"].clone().fill_(70)
            return kernel(**{**arguments, "token_ids": ids})

        return bind

    record = diff(tmp_path, {"embed.embed": frozen})
    assert record["outcome"] == "INCONCLUSIVE"
    assert any("saw no difference" in reason for reason in record["reasons"])


def test_a_state_that_differs_under_equal_logits_fails(tmp_path):
    def last_step(number: int, arguments: dict[str, Any]) -> None:
        row = int(arguments["block_table"][0, 0]) * arguments["block_size"]
        if number == 3 + 5 * 2:  # the last layer of the first prompt's last step
            arguments["k_pool"].view(torch.int16)[row, 0] ^= 1

    record = diff(tmp_path, {"fused.norm_rope_write": after_launch(last_step)}, "steps=6")
    assert record["outcome"] == "FAIL"
    assert any("states differ (first l1.attn.k)" in reason for reason in record["reasons"])


def test_a_broken_comparer_proves_nothing(tmp_path, monkeypatch):
    from metpipe.diff import self_test
    from metpipe.diff.comparer import Comparer

    class Blind(Comparer):
        """Compares the reference with itself."""

        def step(self, index: int, reference: Any, run: Any) -> Any:
            return super().step(index, reference, reference.clone())

    monkeypatch.setattr(
        compare_stage,
        "run_self_test",
        lambda **facts: self_test.run_self_test(Blind, **facts),
    )
    record = diff(tmp_path, {})
    assert record["outcome"] == "INCONCLUSIVE"
    assert "self-test failed" in record["reasons"][0]
