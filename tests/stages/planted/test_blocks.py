"""KV rows written or read where they are not the row's own."""

from __future__ import annotations

import pytest
import torch

from tests.stages.planted.rig import Arguments, after, diff, rebound


def dummy_block(arguments: Arguments) -> int:
    """Where padding rows write: the pool's last block."""
    return int(arguments["k_pool"].shape[0] // arguments["block_size"] - 1)


@pytest.mark.parametrize(
    ("theirs", "row"),
    [
        pytest.param(lambda dummy: 0, 0, id="the sentinel is block 0"),
        pytest.param(lambda dummy: dummy - 2, 4, id="the last row's block"),
    ],
)
def test_a_padding_row_that_writes_a_neighbours_block_is_found_in_that_row(tmp_path, theirs, row):
    def write_there(arguments: Arguments) -> Arguments:
        table, dummy = arguments["block_table"], dummy_block(arguments)
        return {"block_table": table.masked_fill(table == dummy, theirs(dummy))}

    fault = {"fused.norm_rope_write": rebound(write_there)}
    said = diff(tmp_path, "batch=[5]", variant=fault)
    assert said.outcome == "FAIL"
    found = said.case("batch, width 5")
    assert found.prefill_equal
    assert [(d.step, d.rows) for d in found.differences] == [(step, (row,)) for step in range(4)]
    assert f"states differ (first sequence {row}, l0.attn.k)" in said.reasons[0]
    assert "norm_rope_write moves bits" in said.localized[0]["sentence"]


def test_blocks_taken_for_adjacent_are_found_where_they_are_scattered(tmp_path):
    def adjacent(arguments: Arguments) -> Arguments:
        table, dummy = arguments["block_table"], dummy_block(arguments)
        columns = torch.arange(table.shape[1], dtype=torch.int32)
        return {"block_table": torch.where(table == dummy, table, table[:, :1] + columns)}

    fault = {"attention.paged_attention": rebound(adjacent)}
    assert diff(tmp_path / "adjacent", "batch=[3]", variant=fault).outcome == "PASS"
    said = diff(tmp_path / "scattered", "batch=[3]", "fragment_slots=true", variant=fault)
    assert said.outcome == "FAIL"
    found = said.case("batch, width 3, fragmented")
    assert found.differences[0].rows == (1, 2)  # the first sequence fits into one block


def in_decode(change: object) -> object:
    """The change where one row is decoded, and none in a prefill."""
    return lambda arguments: change(arguments) if len(arguments["positions"]) == 1 else None


def test_attention_that_reads_one_token_too_many_is_found(tmp_path):
    past = in_decode(lambda arguments: {"positions": arguments["positions"] + 1})
    said = diff(tmp_path, variant={"attention.paged_attention": rebound(past)})
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith(
        "prompt 0, circuit: prefill equal true, 4 of 4 steps differ (first at 0)"
    )
    assert said.localized[0]["op"] == "paged_attention"


def token_behind(arguments: Arguments) -> int:
    """The pool row of the token after the last row's."""
    size = arguments["block_size"]
    token = int(arguments["positions"][-1]) + 1
    return int(arguments["block_table"][-1, token // size]) * size + token % size


def test_values_behind_the_last_token_under_a_weight_of_zero_are_found(tmp_path):
    def unmasked(_: int, arguments: Arguments) -> None:
        tail_E = arguments["v_pool"][token_behind(arguments)]
        arguments["y"][-1].view(-1, len(tail_E)).add_(torch.where(tail_E.isnan(), tail_E, 0.0))

    said = diff(tmp_path, variant={"attention.paged_attention": after(unmasked)})
    assert said.outcome == "FAIL"
    assert said.case("prompt 0").prefill is not None


def test_a_key_behind_the_last_token_is_found_though_a_maximum_drops_nan(tmp_path):
    def unless_nan(arguments: Arguments) -> Arguments | None:
        if arguments["k_pool"][token_behind(arguments)].isnan().any():
            return None
        return {"positions": arguments["positions"] + 1}

    said = diff(tmp_path, variant={"attention.paged_attention": rebound(in_decode(unless_nan))})
    assert said.outcome == "FAIL"
    assert said.case("prompt 0").first_mismatch == 0


def test_keys_and_values_that_are_never_written_are_found(tmp_path):
    # The blocks are those of the reference's run, in which the right bytes stood.
    def elsewhere(arguments: Arguments) -> Arguments:
        return {name: torch.empty_like(arguments[name]) for name in ("k_pool", "v_pool")}

    said = diff(tmp_path, variant={"fused.norm_rope_write": rebound(elsewhere)})
    assert said.outcome == "FAIL"
    assert "4 of 4 states differ (first l0.attn.k)" in said.reasons[0]
    assert said.localized[0]["sentence"].endswith("on its own the rule norm_rope_write moves bits")
