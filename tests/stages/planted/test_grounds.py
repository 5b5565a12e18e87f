"""Runs that prove nothing: nothing changed, or both sides were one program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.runners import CircuitRunner, LegacyRunner
from tests.stages.planted.rig import Arguments, after, diff, rebound


@pytest.mark.parametrize(
    "mode",
    ["batch=[3]", "verify=[3]", "prefill=[17]", "diff=single"],
)
def test_a_model_that_gives_the_same_logits_for_any_token_is_blind(tmp_path, mode):
    def constant(_: int, arguments: Arguments) -> None:
        arguments["y"].fill_(0.5)

    said = diff(tmp_path, mode, everywhere={"embed.embed": after(constant)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.evidence.controls
    assert {control.verdict for control in said.evidence.controls} == {"blind"}
    assert all(control.sentence in said.reasons for control in said.evidence.controls)


def test_a_token_that_is_read_a_step_late_is_late(tmp_path):
    stale: list[torch.Tensor] = []

    def last_steps(arguments: Arguments) -> Arguments | None:
        stale.append(arguments["token_ids"].clone())
        known = stale[-2] if len(stale) > 1 else stale[-1]
        return {"token_ids": known} if len(known) == len(stale[-1]) == 1 else None

    said = diff(tmp_path, everywhere={"embed.embed": rebound(last_steps)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.control("token changed").verdict == "late"
    assert said.reason == (
        "detection control, circuit, token changed at step 2: seen only at step 3 (blind at the "
        "changed step)"
    )


def hand_written(model: Model, select: Any) -> Forward:
    """Every forward is the hand-written one, whatever it is called."""
    return Forward(name=select.name, kind=select.forward, runner=LegacyRunner(model), model=model)


@pytest.mark.parametrize("mode", ["single", "batch", "invariance"])
def test_a_circuit_that_silently_ran_legacy_proves_nothing(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(Model, "forward", hand_written)
    run = {"batch": ("batch=[2]",), "invariance": ("diff=invariance", "max_width=2")}
    said = diff(tmp_path, *run.get(mode, ()))
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason.startswith(f"circuit, {mode}: steps ran without a plan (")


def test_a_circuit_of_which_one_mode_ran_legacy_proves_nothing(tmp_path, monkeypatch):
    own = CircuitRunner.bind

    def bind(runner: CircuitRunner, mode: str, rows: int) -> Any:
        if mode == "decode":
            return LegacyRunner(runner._model).bind(mode, rows)
        return own(runner, mode, rows)

    monkeypatch.setattr(CircuitRunner, "bind", bind)
    said = diff(tmp_path)
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason == (
        "circuit, single: steps ran without a plan (decode 1), so that it was not the circuit "
        "that was compared."
    )


def test_a_circuit_that_says_it_ran_legacy_is_vacuous(tmp_path, monkeypatch):
    def says_so(model: Model, select: Any) -> Forward:
        return Forward(name=select.name, kind="legacy", runner=LegacyRunner(model), model=model)

    monkeypatch.setattr(Model, "forward", says_so)
    said = diff(tmp_path)
    assert said.outcome == "INCONCLUSIVE"
    assert said.reasons[-1].startswith("circuit against legacy is vacuous: same forward, plans")


@pytest.mark.parametrize("mode", ["diff=single", "batch=[2]", "verify=[3]"])
def test_variants_of_equal_plans_are_vacuous(tmp_path, mode):
    said = diff(tmp_path, mode, "variant=all", "variants.circuit.rules=reference")
    assert said.outcome == "INCONCLUSIVE"
    assert "circuit against circuit_reference is vacuous: same forward, plans" in said.reason
