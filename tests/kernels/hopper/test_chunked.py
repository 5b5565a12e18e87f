"""The delta rule in chunks: near the rule in float64, and equal to itself where that is promised.

Under TRITON_INTERPRET=1 it runs without a GPU (test_chunked_interpreted.py).
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.hybrid import slots_of
from tests.kernels.hopper.exact_delta import GATES, exact, gated_rows
from tests.kernels.hopper.launched import INTERPRETED, Out, launched, same

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
F32, I32 = torch.float32, torch.int32
ROWS = (1, 63, 64, 65, 130, 257)
SHAPES = ((2, 4, 26, 22), (1, 3, 7, 19), (1, 2, 128, 128), (3, 3, 40, 161), (1, 2, 1, 1),
          (1, 1, 100, 64))  # fmt: skip
"""Heads of k, heads of v, dims of both."""
LONGEST = max(ROWS)


def run(gpu, slots, given):
    """The rows' y, and all states behind them."""
    rows = len(given["qkv"])
    values = given["qkv"].shape[1] - 2 * given["k_heads"] * given["k_dim"]
    out = {"y": Out(rows, values, dtype=F32)}
    found = launched(gpu.functions["chunked.gdn_chunked"], out, slots=slots, **given)
    return found["y"], found["h"]


def one_slot(rows: int, slot: int = 2) -> torch.Tensor:
    return torch.full((rows,), slot, dtype=I32)


def part(given, start, stop, h=None):
    """The arguments of some of the rows, and of the states before them."""
    rows = {name: given[name][start:stop].clone() for name in ("qkv", "decay", "beta")}
    return given | rows | {"h": given["h"] if h is None else h}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_it_is_near_the_rule_in_float64(gpu, shape, rows):
    for gates in GATES:
        given = gated_rows(gates, rows, *shape)
        wanted = exact(**given, slots=one_slot(rows))
        y, h = run(gpu, one_slot(rows), given)
        assert wanted.near(y, h), gates
        untouched = [0, 1, 3]
        assert same(h[untouched], given["h"][untouched])


@pytest.mark.parametrize("gates", ["mixed", "no decay", "all taken over"])
def test_a_row_that_is_a_little_off_is_not_near(gpu, gates):
    """Or the test above would show little."""
    given = gated_rows(gates, 130, *SHAPES[0])
    y, h = run(gpu, one_slot(130), given)
    for name in ("beta", "decay", "qkv"):
        other = given | {name: given[name].clone()}
        other[name][127] -= 0.001
        assert not exact(**other, slots=one_slot(130)).near(y, h), name


@pytest.mark.parametrize("rows", (6, 70, 150))
def test_rows_of_several_slots_in_any_order(gpu, rows):
    """Runs of one row and longer ones, slots that come again, and slots that are none."""
    given = gated_rows("mixed", rows, *SHAPES[0])
    for slots in (slots_of(rows), torch.arange(rows, dtype=I32) // 67, slots_of(rows) - 1):
        wanted = exact(**given, slots=slots)
        assert wanted.near(*run(gpu, slots, given))
    slots = torch.where(torch.arange(rows) % 5 < 2, 1 << 30, slots).int()
    wanted = exact(**given, slots=slots)
    assert bool(wanted.y.isnan().any())
    assert wanted.near(*run(gpu, slots, given))


def test_no_slot_at_all_is_nan_and_changes_no_state(gpu):
    given = gated_rows("mixed", 70, *SHAPES[1])
    for slot in (-1, 4):
        y, h = run(gpu, one_slot(70, slot), given)
        assert bool(y.isnan().all())
        assert same(h, given["h"])


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.parametrize("cuts", [(64,), (128, 192, 256), (64, 128, 192, 256), (192,)], ids=str)
@pytest.mark.parametrize("gates", ["mixed", "all taken over"])
def test_cut_at_multiples_of_64_it_has_the_same_bits(gpu, shape, cuts, gates):
    given = gated_rows(gates, LONGEST, *shape)
    y, h = run(gpu, one_slot(LONGEST), given)
    pieces, states = [], given["h"]
    for start, stop in zip((0, *cuts), (*cuts, LONGEST), strict=True):
        piece, states = run(gpu, one_slot(stop - start), part(given, start, stop, states))
        pieces.append(piece)
    assert same(torch.cat(pieces), y)
    assert same(states, h)


def test_cut_elsewhere_it_is_near_still(gpu):
    given = gated_rows("mixed", LONGEST, *SHAPES[0])
    head, states = run(gpu, one_slot(37), part(given, 0, 37))
    tail, states = run(gpu, one_slot(LONGEST - 37), part(given, 37, LONGEST, states))
    assert exact(**given, slots=one_slot(LONGEST)).near(torch.cat((head, tail)), states)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_a_row_s_bits_do_not_hang_on_rows_behind_it(gpu, shape):
    given = gated_rows("mixed", LONGEST, *shape)
    whole, _ = run(gpu, one_slot(LONGEST), given)
    for rows in (1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 200):
        some, _ = run(gpu, one_slot(rows), part(given, 0, rows))
        assert same(some, whole[:rows]), rows
    louder = given | {name: given[name].clone() for name in ("qkv", "decay", "beta")}
    louder["qkv"][100:, 2 * shape[0] * shape[2] :] *= -1000
    louder["decay"][100:], louder["beta"][100:] = 0.0, 1.0
    found, _ = run(gpu, one_slot(LONGEST), louder)
    assert same(found[:100], whole[:100])
    assert not same(found[100:], whole[100:])


def test_a_sequence_s_bits_do_not_hang_on_others_beside_it(gpu):
    given = gated_rows("mixed", LONGEST, *SHAPES[0])
    slots = torch.where(torch.arange(LONGEST) < 130, 1, 3).int()
    y, h = run(gpu, slots, given)
    for slot, start, stop in ((1, 0, 130), (3, 130, LONGEST)):
        alone, states = run(gpu, one_slot(stop - start, slot), part(given, start, stop))
        assert same(y[start:stop], alone)
        assert same(h[slot], states[slot])


def test_it_repeats(gpu):
    given = gated_rows("mixed", LONGEST, *SHAPES[2])
    first, again = (run(gpu, one_slot(LONGEST), given) for _ in range(2))
    assert same(first[0], again[0])
    assert same(first[1], again[1])


def test_wider_keys_than_fit_are_refused(gpu):
    given = gated_rows("mixed", 2, 1, 1, 129, 16)
    with pytest.raises(ValueError, match="heads of 129 for k: at most 128"):
        run(gpu, one_slot(2), given)
