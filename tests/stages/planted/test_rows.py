"""A row whose bits hang on how many rows there are, or on what lies in another row."""

from __future__ import annotations

from tests.stages.planted.rig import Arguments, after, diff, flip
from tests.stages.planted.row_faults import in_both, one_scale_for_all, scaled_by_padding, split_at

SEVEN = tuple(range(7))


def test_a_sum_split_at_one_rung_is_found_by_the_width_that_is_padded_to_it(tmp_path):
    said = diff(tmp_path, "batch=[2,7]", variant={"linear.qkv": split_at(8)})
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith(
        "batch, width 7, circuit: prefill equal true, 4 of 4 steps differ (first at 0)"
    )
    assert said.case("batch, width 7").differences[0].rows == SEVEN
    assert said.case("batch, width 2")
    (found,) = said.localized
    assert (found["step"], found["rule"], found["op"]) == (0, "qkv", "linear")


def test_it_is_found_by_digest_where_no_logits_are_kept(tmp_path):
    fault = {"linear.qkv": split_at(8)}
    said = diff(tmp_path, "batch=[7]", "keep_logits=0", variant=fault)
    assert said.outcome == "FAIL"
    differences = said.case("batch, width 7").differences
    assert [(d.step, d.rows) for d in differences] == [(step, SEVEN) for step in range(4)]
    assert all(d.unequal_bytes for d in differences)


def test_the_same_sum_passes_where_no_step_has_that_many_rows(tmp_path):
    said = diff(tmp_path, variant={"linear.qkv": split_at(8)})
    assert (said.outcome, said.reasons) == ("PASS", [])


def test_in_both_forwards_it_is_the_invariance_table_that_sees_it(tmp_path):
    # The hand-written forward launches q, k and v one by one, so that only the circuit is split.
    fault = {"linear.qkv": split_at(2)}
    said = diff(tmp_path, "diff=invariance", "max_width=2", everywhere=fault)
    assert said.outcome == "FAIL"
    assert said.reasons[0] == (
        "circuit, width, alone against width 2: differs at step 0, row 0, byte 0; the kernel set "
        "promises that it is equal"
    )
    assert {cell.axis for cell in said.evidence.cells if not cell} == {
        "width", "slot", "neighbours", "verify",
    }  # fmt: skip
    assert {cell.variant for cell in said.evidence.cells if not cell} == {"circuit"}
    (found,) = said.localized
    assert (found["mode"], found["rule"], found["step"]) == ("invariance", "qkv", 0)
    assert found["sentence"].startswith(
        "circuit, invariance, width, alone against width 2: row 0 parts at step 0, first in "
    )


def test_a_padding_row_that_feeds_a_shared_scale_is_found_where_there_is_padding(tmp_path):
    fault = {"linear.gate_up_silu": after(scaled_by_padding)}
    said = diff(tmp_path, "batch=[4,5]", variant=fault)
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("batch, width 5, circuit: prefill equal true")
    assert said.case("batch, width 5").differences[0].step == 0
    assert said.case("batch, width 5").differences[0].rows == (0, 1, 2, 3, 4)
    assert said.case("batch, width 4")
    (found,) = said.localized
    assert (found["step"], found["rule"]) == (0, "gate_up_silu")


def test_a_scale_over_all_rows_moves_another_row_in_the_control(tmp_path):
    said = diff(tmp_path, "batch=[3]", everywhere=in_both(one_scale_for_all))
    assert said.case("batch, width 3")  # both forwards are wrong alike
    assert said.outcome == "FAIL"
    assert said.reason == (
        "detection control, circuit, batch, width 3, token of row 1 changed at step 2: row 0 "
        "moved, and row 1 was changed"
    )
    assert said.control("token of row 1").verdict == "other_row"


def test_a_scale_over_all_rows_breaks_the_promise_of_neighbours(tmp_path):
    fault = in_both(one_scale_for_all)
    said = diff(tmp_path, "diff=invariance", "max_width=2", everywhere=fault)
    assert said.outcome == "FAIL"
    broken = {(cell.variant, cell.axis) for cell in said.evidence.cells if not cell}
    assert {("legacy", "neighbours"), ("circuit", "neighbours")} <= broken
    assert "legacy, neighbours, row 1 of 2 beside other neighbours: differs at step 0, row 1" in (
        "\n".join(said.reasons)
    )


def in_padding(_: int, arguments: Arguments) -> None:
    """Other embeddings for the rows behind five of eight."""
    if len(arguments["y"]) == 8:
        arguments["y"][5:] = 1.0


def test_what_a_padding_row_holds_moves_no_row(tmp_path):
    said = diff(tmp_path, "batch=[5]", variant={"embed.embed": after(in_padding)})
    assert said.outcome == "PASS"


def test_what_a_padding_row_holds_is_no_place_where_a_difference_starts(tmp_path):
    def in_row_0(_: int, arguments: Arguments) -> None:
        if len(arguments["y"]) == 8:
            flip(arguments["y"][0])

    faults = {"embed.embed": after(in_padding), "attention.paged_attention": after(in_row_0)}
    said = diff(tmp_path, "batch=[5]", variant=faults)
    assert said.outcome == "FAIL"
    assert said.case("batch, width 5").differences[0].rows == (0,)
    (found,) = said.localized
    assert (found["mode"], found["case"], found["op"]) == ("batch", "width 5", "paged_attention")


def test_each_mode_in_which_a_variant_differs_says_where(tmp_path):
    fault = {"attention.paged_attention": after(lambda _, arguments: flip(arguments["y"][0]))}
    said = diff(tmp_path, "diff=all", "mtp=false", "max_width=2", variant=fault)
    assert said.outcome == "FAIL"
    modes = ["single", "batch", "verify", "verify_batch", "prefill", "swap", "invariance"]
    assert [found["mode"] for found in said.localized] == modes
