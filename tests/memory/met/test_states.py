"""Recurrent states and paged caches: units per holding, dtypes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import Planned, StateGroup, evaluate
from metpipe.memory.met.engine_counts import EngineCounts, VerifySlots
from metpipe.memory.met.flags import met_serve
from metpipe.memory.met.side import BootPools
from metpipe.memory.met.states import Pool, StateFormats, state_rows

from .points import DEFAULT, MIB, behaviours, point_of

DENSE = "qwen3_8_27b_nvfp4"
DRAFTING = {"speculative": True, "num_drafts": 3, "max_batch_size": 1, "max_seq_len": 32768}


def rows_of(point):
    return {
        (row.section, row.local, row.holding): row
        for row in evaluate(point).counts.states
        if row.kind in ("paged_kv", "recurrent")
    }


@pytest.mark.parametrize(
    ("flag", "target", "dtype"),
    [(None, None, "fp8"), (None, "f16", "f16"), ("bf16", "f16", "bf16"), ("bf16", None, "bf16")],
)
def test_the_dtype_of_keys_and_values_is_the_flags_the_targets_or_the_engines(flag, target, dtype):
    """Section 10: a flag wins over the model's target, and that over the engine's fp8."""
    assert met_serve(DEFAULT | {"kv_cache_dtype": flag}, target).kv_cache_dtype == dtype


def test_a_target_that_sets_no_dtype_leaves_it_to_the_engine():
    assert {behaviour.kv_dtype for behaviour in behaviours()} == {""}
    rows = rows_of(point_of(DENSE, {}))
    assert rows["main", "attn.k", "blocks"].dtype == "fp8"


def test_the_published_boot_of_the_dense_hybrid():
    """4380 blocks for the target and for the draft, one slot and a dummy, verifies of four rows."""
    point = point_of(DENSE, DRAFTING | {"kv_cache_dtype": "bf16"})
    point = replace(point, met=replace(point.met, pools=BootPools(4380, 4380)))
    rows = rows_of(point)
    sizes = {key: row.bytes / MIB for key, row in rows.items()}
    assert sizes["main", "attn.k", "blocks"] == sizes["main", "attn.v", "blocks"] == 2190
    assert sizes["draft", "attn.k", "blocks"] == sizes["draft", "attn.v", "blocks"] == 136.875
    assert rows["draft", "attn.k", "blocks"].units == 70080
    assert sizes["main", "gdn.h", "live"] == sizes["main", "gdn.h", "checkpoint"] == 288
    assert sizes["main", "gdn.h", "steps"] == 864
    assert rows["main", "gdn.h", "steps"].units == 6
    assert sizes["main", "gdn.conv", "live"] == sizes["main", "gdn.conv", "checkpoint"] == 15
    assert sizes["main", "gdn.conv", "steps"] == 60
    assert rows["main", "gdn.conv", "steps"].units == 8
    assert sum(sizes.values()) == 6183.75


def test_without_speculation_nothing_is_kept_to_go_back_to_and_the_draft_has_no_cache():
    keys = set(rows_of(point_of(DENSE, {"max_batch_size": 4})))
    assert {holding for _, _, holding in keys} == {"blocks", "live"}
    assert {section for section, _, _ in keys} == {"main"}


def test_an_f16_pool_halves_h_and_leaves_the_window():
    wide = rows_of(point_of(DENSE, DRAFTING))
    narrow = rows_of(point_of(DENSE, DRAFTING | {"ssm_h_dtype": "f16-pool"}))
    h, conv = ("main", "gdn.h", "steps"), ("main", "gdn.conv", "steps")
    assert 2 * narrow[h].bytes == wide[h].bytes
    assert narrow[conv].bytes == wide[conv].bytes


def test_replay_keeps_a_checkpoint_and_no_steps():
    rows = rows_of(point_of(DENSE, DRAFTING | {"ssm_rollback_mode": "replay"}))
    assert rows["main", "gdn.h", "steps"].bytes == rows["main", "gdn.conv", "steps"].bytes == 0
    assert rows["main", "gdn.h", "checkpoint"].units == 2


@pytest.mark.parametrize(
    ("choice", "quantization", "dtype"),
    [
        ("qwen3_6_35b_a3b_nvfp4", "nvfp4", "fp8"),
        ("qwen3_6_35b_a3b_nvfp4", "bf16", "bf16"),
        (DENSE, "nvfp4", "bf16"),
    ],
)
def test_only_one_familys_nvfp4_draft_has_a_narrow_cache(choice, quantization, dtype):
    serve = {"speculative": True, "mtp_quantization": quantization, "kv_cache_dtype": "fp8"}
    rows = rows_of(point_of(choice, serve))
    assert rows["draft", "attn.k", "blocks"].dtype == dtype
    assert rows["main", "attn.k", "blocks"].dtype == "fp8"


COUNTS = EngineCounts(
    slots=2,
    num_drafts=1,
    mtp_max_seqs=32,
    verify=VerifySlots((1, 1, 1), 2),
    prefix_slots=0,
    ring_depth=0,
    carry_slots=0,
    carry_rows=0,
    verify_rows=128,
    max_batch_tokens=100,
)


def group(**changes):
    fields = {
        "local": "x.h", "kind": "recurrent", "lifetime": "sequence", "format": "f32",
        "elements": 2, "section": "main", "states": ("l0.x.h",), "verify": "h_steps",
    }  # fmt: skip
    return StateGroup(**fields | changes)


def bytes_of(found):
    formats = StateFormats("bf16", "bf16", "f16")
    rows = state_rows((found,), formats, COUNTS, Pool(3, 16), None)
    return {row.holding: row.bytes for row in rows}


def test_units_of_a_recurrent_state():
    assert bytes_of(group()) == {"live": 3 * 8, "steps": 3 * 8, "checkpoint": 3 * 8}
    assert bytes_of(group(verify="conv_steps"))["steps"] == 6 * 8
    assert bytes_of(group(format="{ssm_h_storage}"))["live"] == 3 * 4


def test_a_keyed_format_is_sized_by_what_it_stands_for():
    """Two elements in f16 and four slots: 2 x 2 x 4."""
    counts = replace(COUNTS, slots=3, verify=VerifySlots((), 0))
    formats = StateFormats("bf16", "bf16", "f16")
    found = group(format="{ssm_h_storage}")
    assert [row.bytes for row in state_rows((found,), formats, counts, Pool(3, 16), None)] == [16]


def test_a_state_that_no_verify_can_undo_is_refused():
    with pytest.raises(ConfigError, match=r"x\.h: declares no `verify`"):
        bytes_of(group(verify=None))


def test_a_format_that_nobody_states_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"x\.h: nothing states its format \{mystery\}"):
        bytes_of(group(format="{mystery}"))


@pytest.mark.parametrize("dtype", ["nvfp4", "turbo"])
def test_a_cache_without_an_element_size_is_refused(dtype):
    with pytest.raises(ConfigError, match=rf"'{dtype}'"):
        evaluate(point_of(DENSE, {"kv_cache_dtype": dtype}))


def test_groups_of_a_plan_keep_how_a_verify_holds_them():
    planned = point_of(DENSE, {}).planned
    assert isinstance(planned, Planned)
    kinds = {group.local: group.verify for group in planned.states if group.kind == "recurrent"}
    assert kinds == {"gdn.h": "h_steps", "gdn.conv": "conv_steps"}
