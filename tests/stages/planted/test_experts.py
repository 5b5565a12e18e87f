"""Experts whose parts are summed in another order than the router's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.stages.planted.hybrids import EXPERTS
from tests.stages.planted.rig import Arguments, Fault, Kernel, diff

Order = Callable[[torch.Tensor], torch.Tensor]
"""ids i32 [rows, chosen] -> the choice of each row that is added first, second, ..."""


def summed(order: Order) -> Fault:
    """Each expert's part added to a sum of bf16, as parts that arrive one by one would be."""

    def wrap(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            count = arguments["ids"].shape[1]
            parts = [_part(kernel, arguments, choice) for choice in (*range(count), None)]

            def run() -> None:
                *experts, shared = [part() for part in parts]
                found = torch.stack(experts)
                ordered = order(arguments["ids"]).T[:, :, None].expand_as(found)
                total = torch.zeros_like(shared)
                for part in (*found.gather(0, ordered), shared):
                    total += part
                arguments["y"].copy_(total)

            return run

        return bind

    return wrap


def _part(kernel: Kernel, whole: Arguments, choice: int | None) -> Callable[[], torch.Tensor]:
    """One choice's part of every row alone; None: the shared expert's."""
    own = {
        **whole,
        "weights": torch.zeros_like(whole["weights"]),
        "y": torch.full_like(whole["y"], torch.nan),
    }
    if choice is not None:
        own["shared_x"] = torch.zeros_like(whole["shared_x"])
    launch = kernel(**own)

    def run() -> torch.Tensor:
        if choice is not None:
            own["weights"][:, choice] = whole["weights"][:, choice]
        launch()
        return own["y"]

    return run


def by_id(ids: torch.Tensor) -> torch.Tensor:
    """The lowest id first."""
    return ids.argsort(1)


def by_arrival(ids: torch.Tensor) -> torch.Tensor:
    """The expert that most rows of the step chose last, the lower id of a tie first."""
    chosen_by = torch.bincount(ids.flatten().long(), minlength=8)
    return (chosen_by[ids.long()] * 8 + ids).argsort(1)


def test_experts_summed_by_id_are_found(tmp_path):
    fault = {"down_blend.shared_down_blend": summed(by_id)}
    said = diff(tmp_path, variant=fault, model=EXPERTS)
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("prompt 0, circuit: prefill equal false")
    assert said.localized[0]["rule"] == "shared_down_blend"


def test_experts_summed_by_arrival_are_found_by_a_row_and_its_neighbours(tmp_path):
    # Only the circuit fuses them; alone, a row's experts arrive in order of their ids.
    fault = {"down_blend.shared_down_blend": summed(by_arrival)}
    run = ("diff=invariance", "max_width=2")
    said = diff(tmp_path, *run, everywhere=fault, model=EXPERTS)
    assert said.outcome == "FAIL"
    broken = {(cell.variant, cell.axis) for cell in said.evidence.cells if not cell}
    assert {("circuit", "width"), ("circuit", "neighbours")} <= broken
    assert {variant for variant, _ in broken} == {"circuit"}
