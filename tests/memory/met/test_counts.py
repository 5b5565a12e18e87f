"""Counts of the engine: ladders, verify slots, the rows of a step."""

from __future__ import annotations

import pytest

from metpipe.errors import ConfigError
from metpipe.memory.met.behaviour_toml import parse_behaviour
from metpipe.memory.met.demand import draft_blocks, main_blocks
from metpipe.memory.met.engine_counts import dispatch_cap, verify_slots
from metpipe.memory.met.held import counts_at
from metpipe.memory.met.ladder import drafts_at

from .points import point_of

DENSE, MOE = "qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_fp8"
DRAFTING = {"speculative": True, "num_drafts": 3}


@pytest.mark.parametrize(("active", "drafts"), [(1, 3), (8, 3), (9, 1), (32, 1), (64, 1)])
def test_fewer_sequences_draft_more(active, drafts):
    assert drafts_at(active, 3) == drafts


@pytest.mark.parametrize("active", [1, 8, 9, 64])
def test_a_ladder_never_exceeds_the_drafts_that_are_asked_for(active):
    assert drafts_at(active, 1) == 1
    assert drafts_at(active, 0) == 0


@pytest.mark.parametrize(("flag", "own", "cap"), [(7, 64, 7), (None, 64, 64), (None, 0, 32)])
def test_the_dispatch_cap_is_the_flags_then_the_targets_then_the_engines(flag, own, cap):
    assert dispatch_cap(flag, own) == cap


@pytest.mark.parametrize("cap", [0, 129])
def test_a_cap_outside_its_range_is_refused(cap):
    with pytest.raises(ConfigError, match=rf"serve\.mtp_max_seqs={cap}: must lie in 1\.\.128"):
        dispatch_cap(cap, 0)


def test_verify_slots_keep_what_the_widest_batch_that_reaches_them_needs():
    verify = verify_slots(slots=128, drafts=3, cap=32, uniform=False, replays=False)
    assert verify.h_steps == (3,) * 8 + (1,) * 24 + (3,)
    assert (verify.h_units, verify.conv_units) == (51, 4 * 33)


@pytest.mark.parametrize(
    ("slots", "cap", "uniform", "replays", "h_steps", "conv_steps"),
    [
        (1, 32, False, False, (3, 3), 4),
        (3, 1, False, False, (3, 3, 3, 3), 4),
        (10, 4, False, False, (3,) * 8 + (1, 1) + (3,), 4),
        (2, 32, True, False, (3, 3, 3), 4),
        (2, 32, False, True, (0, 0, 0), 0),
    ],
)
def test_verify_slots(slots, cap, uniform, replays, h_steps, conv_steps):
    verify = verify_slots(slots, 3, cap, uniform, replays)
    assert (verify.h_steps, verify.conv_steps) == (h_steps, conv_steps)


@pytest.mark.parametrize(
    ("serve", "what_ifs", "k"),
    [
        ({"speculative": True}, {}, 2),
        (DRAFTING, {}, 4),
        (DRAFTING, {"tree_nodes": 6}, 6),
        (DRAFTING, {"tree_nodes": 1}, 2),
        ({"dflash": True, "dflash_gamma": 7, "speculative": False}, {}, 8),
    ],
)
def test_rows_of_a_verify(serve, what_ifs, k):
    counts = counts_at(point_of(DENSE, serve, **what_ifs))
    assert counts.verify_width == k
    assert counts.verify.conv_steps == k


def test_a_tree_and_a_block_drafter_keep_every_row_in_every_slot():
    plain = counts_at(point_of(DENSE, DRAFTING | {"max_batch_size": 16})).verify
    tree = counts_at(point_of(DENSE, DRAFTING | {"max_batch_size": 16}, tree_nodes=4)).verify
    assert plain.h_steps == (3,) * 8 + (1,) * 8 + (3,)
    assert tree.h_steps == (3,) * 17


@pytest.mark.parametrize(
    ("serve", "rows"),
    [
        ({"max_batch_size": 1, "max_seq_len": 32768}, 8193),
        ({"max_batch_size": 128, "max_seq_len": 2048}, 2048 + 128),
        ({"max_prefill_tokens": 512}, 512 + 8),
        ({"max_prefill_tokens": 70000, "max_seq_len": 100000}, 65520 + 8),
        ({"max_prefill_tokens": 1, "max_batch_size": 1, **DRAFTING}, 5),
        ({"max_prefill_tokens": 1, "max_batch_size": 1}, 2),
    ],
)
def test_rows_of_the_widest_step(serve, rows):
    assert counts_at(point_of(DENSE, serve)).max_batch_tokens == rows


@pytest.mark.parametrize(
    ("serve", "expected"),
    [
        ({}, (0, 8, 0, 0, 0)),
        ({"enable_prefix_caching": True}, (16, 8, 0, 0, 0)),
        ({"ssm_decode_ring_slots": 2}, (0, 8, 0, 0, 0)),
        (DRAFTING, (0, 0, 9, 128, 128)),
        (DRAFTING | {"ssm_h_dtype": "f16-pool"}, (0, 0, 0, 0, 128)),
    ],
)
def test_caches_that_the_flags_ask_for(serve, expected):
    counts = counts_at(point_of(DENSE, serve))
    carry = (counts.carry_slots, counts.carry_rows)
    assert (counts.prefix_slots, counts.ring_depth, *carry, counts.verify_rows) == expected


def test_a_target_says_its_own_drafts_and_cap():
    counts = counts_at(point_of(MOE, {"speculative": True, "max_batch_size": 128}))
    assert (counts.num_drafts, counts.mtp_max_seqs, counts.verify.count) == (1, 128, 129)
    dense = counts_at(point_of(DENSE, {"speculative": True, "max_batch_size": 128}))
    assert (dense.num_drafts, dense.mtp_max_seqs, dense.verify.count) == (1, 32, 33)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (15, 1), (16, 2), (17, 2), (31, 2), (32, 3), (1152, 73)]
)
def test_blocks_of_the_target(tokens, blocks):
    assert main_blocks(5, tokens, 0, 16) == 5 * blocks + 1
    assert main_blocks(5, tokens - 1, 1, 16) == 5 * blocks + 1


@pytest.mark.parametrize(
    ("tokens", "main", "cap", "blocks"),
    [(2048, 16513, 128, 16512), (2048, 34708, 32, 4128), (32768, 2050, 32, 2050), (100, 2, 4, 7)],
)
def test_blocks_of_the_draft_head(tokens, main, cap, blocks):
    assert draft_blocks(tokens, main, cap) == blocks


BEHAVIOUR = """
schema = 1
arch = "qwen3_5"
dims = { layers = 64 }
[behavior]
default_num_drafts = 2
mtp_max_seqs = 9
default_kv_dtype = "f16"
[[checkpoint]]
id = "a/b"
outside_bytes = 7
"""


def test_a_targets_defaults_are_read():
    behaviour = parse_behaviour(BEHAVIOUR, "B.toml")
    assert (behaviour.num_drafts, behaviour.mtp_max_seqs, behaviour.kv_dtype) == (2, 9, "f16")
    assert behaviour.outside == {"a/b": 7}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema = 1", "schema = 2"),
        ("mtp_max_seqs = 9", "mtp_max_seqs = 129"),
        ("arch", "ark"),
        ("f16", "nvfp4"),
    ],
)
def test_a_broken_behaviour_is_refused(old, new):
    with pytest.raises(ConfigError, match=r"^B\.toml: "):
        parse_behaviour(BEHAVIOUR.replace(old, new), "B.toml")
