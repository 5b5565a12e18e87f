"""The ten kinds of caches: units, bytes, and what a model declares."""

from __future__ import annotations

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate
from metpipe.memory.met.caches import KINDS, Cache, CacheUnits, cache_rows
from metpipe.memory.met.lookup_index import lookup_bytes

from .points import DEFAULT, MIB, circuit_of, point_of

CACHES = tuple(Cache(f"x.{kind}", kind, 10, "f32", ("x",)) for kind in KINDS)


def bytes_of(caches, **units):
    return {row.kind: row.bytes for row in cache_rows(caches, CacheUnits(**units)) if row.bytes}


def test_there_are_ten_and_absent_counts_size_nothing():
    rows = list(cache_rows(CACHES, CacheUnits()))
    assert len(rows) == 10
    assert all((row.units, row.bytes) == (0, 0) for row in rows)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"prefix_slots": 5}, {"prefix_snapshot": 5 * 10 * 4}),
        ({"ring_depth": 8, "slots": 3}, {"ring_snapshot": 24 * 40}),
        ({"carry_slots": 33}, {"carry_stash": 33 * 40}),
        ({"carry_rows": 128}, {"carry_table": 128 * 40}),
        ({"verify_rows": 128}, {"verify_table": 128 * 40, "accept_stash": 128 * 40}),
        ({"capture_rows": 100}, {"hidden_capture": 100 * 40}),
        ({"sequences": 2, "history": 1000}, {"prompt_lookup_index": 2 * (2048 * 17 + 16)}),
        (
            {"sequences": 4, "tree_nodes": 16},
            {"token_tree_mask": 4 * 16 * 16 * 40, "draft_tokens": 64 * 40},
        ),
    ],
)
def test_each_kind_has_its_units(units, expected):
    assert bytes_of(CACHES, **units) == expected


def test_a_table_of_pointers():
    assert bytes_of((Cache("t", "carry_table", 3, "u64", ("t",)),), carry_rows=128) == {
        "carry_table": 128 * 3 * 8
    }


def test_only_the_lookup_index_is_the_hosts():
    held = {row.kind: row.holding for row in cache_rows(CACHES, CacheUnits())}
    assert {kind for kind, holding in held.items() if holding == "host"} == {"prompt_lookup_index"}


@pytest.mark.parametrize(("entries", "size"), [(0, 0), (1, 84), (7, 152), (14, 288), (15, 560)])
def test_a_hash_map_grows_by_powers_of_two(entries, size):
    assert lookup_bytes(entries) == size


def test_an_index_beyond_memory_is_refused():
    with pytest.raises(ConfigError, match="does not fit any memory"):
        lookup_bytes(1 << 62)


def cache_of(point):
    states = evaluate(point).counts.states
    return {row.local: row.bytes for row in states if row.holding in ("cache", "host")}


def test_the_dense_hybrid_declares_what_is_published():
    serve = {"speculative": True, "num_drafts": 3, "max_batch_size": 1, "max_seq_len": 32768}
    found = cache_of(
        point_of("qwen3_8_27b_nvfp4", serve | {"enable_prefix_caching": True}, capture_rows=32768)
    )
    per_layer = (found["gdn.carry_vgs"] + found["gdn.carry_conv"]) / 48 / 2
    assert per_layer == 394_752 + 163_840
    assert found["gdn.carry_pend"] == 48 * 2 * 4
    assert found["gdn.carry_ptrs"] + found["gdn.carry_flags"] == 48 * 128 * 28
    assert found["head.carry_slots"] == 128 * 8
    assert found["gdn.verify_wy"] == 48 * 128 * 16 * 8
    assert found["head.accept_hidden"] == 128 * 5120 * 2
    assert found["head.capture_hidden"] == 320 * MIB
    assert found["gdn.prefix_h"] == 16 * 144 * MIB
    assert found["gdn.prefix_conv"] == 16 * 7.5 * MIB
    assert found["head.prefix_hidden"] == 16 * 5120 * 2
    assert found["gdn.ring_h"] == found["gdn.ring_conv"] == 0


def test_carry_stash_per_layer_and_slot_of_the_other_hybrids():
    for choice, layers, per_layer in (
        ("qwen3_6_35b_a3b_fp8", 30, 263_168 + 131_072 + 4),
        ("qwen3_5_122b_a10b_nvfp4", 36, 526_336 + 196_608 + 4),
    ):
        found = cache_of(point_of(choice, {"speculative": True, "max_batch_size": 1}))
        stash = sum(found[f"gdn.carry_{name}"] for name in ("vgs", "conv", "pend"))
        assert stash == layers * 2 * per_layer


@pytest.mark.parametrize(
    ("choice", "layers", "stash"),
    [
        ("qwen3_8_27b_nvfp4", 48, 394_752 + 163_840 + 4),
        ("qwen3_6_35b_a3b_fp8", 30, 263_168 + 131_072 + 4),
    ],
)
def test_carry_and_tables_at_32_verify_slots_and_the_dummy(choice, layers, stash):
    """33 slots and 128 rows: 28 bytes of tables a layer and row, 8 a row, 16 pointers for WY."""
    serve = {"speculative": True, "num_drafts": 3, "max_batch_size": 32, "mtp_max_seqs": 32}
    report = evaluate(point_of(choice, serve))
    tables = 128 * (layers * 28 + 8)
    assert report.term("carry").low == layers * 33 * stash + tables
    assert cache_of(point_of(choice, serve))["gdn.verify_wy"] == layers * 128 * 16 * 8


def test_prefix_snapshots_are_f32_whatever_the_pool_stores():
    serve = {"enable_prefix_caching": True}
    narrow = cache_of(point_of("qwen3_8_27b_nvfp4", serve | {"ssm_h_dtype": "f16-pool"}))
    wide = cache_of(point_of("qwen3_8_27b_nvfp4", serve))
    assert narrow["gdn.prefix_h"] == wide["gdn.prefix_h"]


def test_the_decode_ring_of_a_serve_that_drafts_nothing():
    """Published for Nemotron-3-Nano at 8 slots, 3082.0 MiB, and for the 122B at one, 1206."""
    for choice, slots, ring in (
        ("nemotron_3_nano_30b_a3b_nvfp4", 8, 8 * 8 * 48.15625),
        ("qwen3_5_122b_a10b_nvfp4", 1, 1206),
    ):
        found = cache_of(point_of(choice, {"max_batch_size": slots}))
        assert sum(size for name, size in found.items() if ".ring_" in name) == ring * MIB


def test_a_dense_model_without_states_or_drafts_has_only_what_any_has():
    point = point_of("qwen3_8b", DEFAULT | {"enable_prefix_caching": True})
    assert set(cache_of(point)) == {"head.prompt_lookup", "head.tree_mask", "head.draft_tokens"}
    assert circuit_of("qwen3_8b").arch == "dense_gqa"
