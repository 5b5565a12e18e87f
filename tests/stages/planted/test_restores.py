"""A state that is saved and restored, or carried from one prefill chunk to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metpipe.engine import spilling
from metpipe.engine.model import Model
from metpipe.stages.modes import spill
from tests.stages.planted.rig import Arguments, Kernel, diff, forward_that_runs, rebound

Restore = Callable[[Model, Any, torch.Tensor], None]
OWN, REFERENCES = "swap, own record", "swap, the reference's record"


def restored_by(monkeypatch: Any, fault: Restore, *, everywhere: bool = False) -> None:
    """Restore by `fault`: where the circuit runs, or everywhere."""
    running = forward_that_runs(monkeypatch)

    def restore(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
        faulty = everywhere or running() == "circuit"
        (fault if faulty else spilling.restore)(model, sequence, record_B)

    monkeypatch.setattr(spill, "restore", restore)


def lengths_alone(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
    """The sequence says that it is restored, and has no byte of it."""
    kept = {name: pool.clone() for name, pool in model.states.items()}
    spilling.restore(model, sequence, record_B)
    for name, pool in model.states.items():
        pool.copy_(kept[name])


def without_the_last_token(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
    """One row too few of every pool."""
    spilling.restore(model, sequence, record_B)
    token, size = sequence.length - 1, model.sizes.block_size
    for pool in model.states.values():
        pool[sequence.blocks[token // size] * size + token % size] = torch.nan


@pytest.mark.parametrize("fault", [lengths_alone, without_the_last_token])
def test_a_restore_that_loses_bytes_is_found_at_the_step_behind_it(tmp_path, monkeypatch, fault):
    # The blocks that it restores into are those of the reference's run, with the right bytes.
    restored_by(monkeypatch, fault)
    said = diff(tmp_path, "diff=swap")
    assert said.outcome == "FAIL"
    for name in (OWN, REFERENCES):
        assert said.case(name).prefill_equal
        assert [d.step for d in said.case(name).differences] == [2, 3]
        assert "l0.attn.k" in said.case(name).state_diff
        assert "record" not in said.case(name).state_diff


def into_the_block_before(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
    """The first block's rows go to the block before it, which is nobody's."""
    before = {name: pool.clone() for name, pool in model.states.items()}
    spilling.restore(model, sequence, record_B)
    size = model.sizes.block_size
    first = sequence.blocks[0] * size
    for name, pool in model.states.items():
        restored = pool[first : first + size].clone()
        pool[first : first + size] = before[name][first : first + size]
        pool[first - size : first] = restored


def beside_its_own(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
    """Every row where it belongs, and a copy of the first block's in the block before."""
    spilling.restore(model, sequence, record_B)
    size = model.sizes.block_size
    first = sequence.blocks[0] * size
    for pool in model.states.values():
        pool[first - size : first] = pool[first : first + size]


@pytest.mark.parametrize(
    ("fault", "equal"), [(into_the_block_before, False), (beside_its_own, True)]
)
def test_a_restore_into_anothers_block_is_found_there(tmp_path, monkeypatch, fault, equal):
    restored_by(monkeypatch, fault)
    said = diff(tmp_path, "diff=swap")
    assert said.outcome == "FAIL"
    assert bool(said.case(OWN)) == equal
    moved = "variant, swap, own record, circuit: bytes that no step owns moved (l0.attn.k, "
    assert any(reason.startswith(moved) for reason in said.reasons)


def test_a_restore_of_nothing_on_both_sides_contradicts_what_was_saved(tmp_path, monkeypatch):
    restored_by(monkeypatch, lengths_alone, everywhere=True)
    said = diff(tmp_path, "diff=swap")
    assert said.outcome == "FAIL"
    controls = [control for control in said.evidence.controls if "record" in control.name]
    assert {control.verdict for control in controls} == {"blind"}
    assert said.reasons[0] == (
        "legacy, swap, own record: l0.attn.k, l0.attn.v, l1.attn.k, l1.attn.v was not restored as "
        "it was saved."
    )


def without_the_first_keys(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
    """All but the keys of the first layer."""
    keys = model.states["l0.attn.k"]
    kept = keys.clone()
    spilling.restore(model, sequence, record_B)
    keys.copy_(kept)


def test_a_restore_that_loses_a_state_in_both_is_said_and_seen_by_the_table(tmp_path, monkeypatch):
    restored_by(monkeypatch, without_the_first_keys, everywhere=True)
    said = diff(tmp_path / "swap", "diff=swap")
    assert all(case.comparison for case in said.evidence.cases)  # both lose it
    assert said.outcome == "FAIL"
    assert said.reasons[0] == (
        "legacy, swap, own record: l0.attn.k was not restored as it was saved."
    )
    said = diff(tmp_path / "table", "diff=invariance", "max_width=2")
    assert said.outcome == "FAIL"
    assert {reason for reason in said.reasons if reason.endswith("as it was saved.")} == {
        f"{variant}, invariance, {leg}: l0.attn.k was not restored as it was saved."
        for variant in ("legacy", "circuit")
        for leg in ("spilled", "restored 64")
    }
    assert {cell.name for cell in said.evidence.cells if not cell} == {
        "one slot against another that it was spilled to",
        "65 tokens prefilled at once against 64 of them restored",
    }


def test_a_prefix_that_is_restored_without_its_keys_in_both_is_seen_by_the_table(
    tmp_path, monkeypatch
):
    restored_by(monkeypatch, without_the_first_keys, everywhere=True)
    said = diff(tmp_path / "prefill", "prefill=[256]")
    assert said.case("prefill, 256 tokens restored, 37 computed")  # both forwards are wrong alike
    said = diff(tmp_path / "table", "diff=invariance", "max_width=2")
    assert said.outcome == "FAIL"
    for variant in ("legacy", "circuit"):
        (cell,) = [
            cell
            for cell in said.evidence.cells
            if not cell and (cell.variant, cell.axis) == (variant, "prefill_chunks")
        ]
        assert cell.name == "65 tokens prefilled at once against 64 of them restored"
        assert cell.step == -1


def test_a_record_with_a_wrong_byte_is_found_in_the_record(tmp_path, monkeypatch):
    running = forward_that_runs(monkeypatch)

    def save(model: Model, sequence: Any) -> torch.Tensor:
        record_B = spilling.save(model, sequence)
        if running() == "circuit":
            record_B[-1] ^= 1
        return record_B

    monkeypatch.setattr(spill, "save", save)
    said = diff(tmp_path, "diff=swap")
    assert said.outcome == "FAIL"
    assert "record" in said.case(OWN).state_diff
    # What is restored in the crossing is the reference's record, but its own is wrong there too.
    assert said.case(REFERENCES).state_diff == ("record",)


def test_a_prefix_that_is_computed_again_was_not_restored_and_proves_nothing(tmp_path, monkeypatch):
    restored_by(monkeypatch, lambda model, sequence, record_B: None)
    said = diff(tmp_path, "prefill=[256]")
    assert said.outcome == "FAIL"
    assert all(case.comparison for case in said.evidence.cases)
    assert said.reasons[0].endswith("l1.attn.v was not restored as it was saved.")
    assert said.reasons[1] == (
        "circuit, prefill, 256 tokens restored, 37 computed: the prefill computed 293 tokens, not "
        "the 37 behind the restored prefix."
    )


def test_a_prefix_that_was_not_restored_is_found(tmp_path, monkeypatch):
    restored_by(monkeypatch, lengths_alone)
    said = diff(tmp_path, "prefill=[256]")
    assert said.outcome == "FAIL"
    assert said.case("prefill, 256 tokens")
    assert said.case("prefill, 256 tokens restored, 37 computed").prefill is not None


def test_positions_baked_into_the_first_chunk_are_found_in_the_chunked_prefill(tmp_path):
    def baked(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            if len(arguments["positions"]) == 16:
                arguments = {**arguments, "positions": torch.arange(16, dtype=torch.int32)}
            return kernel(**arguments)

        return bind

    fault = {"fused.norm_rope_write": baked}
    said = diff(tmp_path, "prefill=[37]", "prefill_chunk=[16]", variant=fault)
    assert said.outcome == "FAIL"
    assert said.case("prefill, 37 tokens")
    assert said.case("prefill, 37 tokens in chunks of 16").prefill is not None
    assert said.localized[0]["rule"] == "norm_rope_write"


def test_a_prompt_token_that_is_not_read_is_blind(tmp_path):
    def without_the_middle(arguments: Arguments) -> Arguments | None:
        ids = arguments["token_ids"].clone()
        if len(ids) != 17:
            return None
        ids[8] = 70
        return {"token_ids": ids}

    said = diff(tmp_path, "prefill=[17]", everywhere={"embed.embed": rebound(without_the_middle)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.control("token of the prompt").verdict == "blind"
