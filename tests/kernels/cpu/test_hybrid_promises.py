"""A row of the hybrid families gives the same bytes and leaves the same states in any company.

The rows of a sequence run as one launch, in pieces, one by one, in another slot, between other
sequences, and beside rows of NaN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kernels.cpu.hybrid import (
    EXPERTS,
    LAYERS,
    Layer,
    no_steps,
    same_bits32,
    scattered_steps,
    untouched,
)
from tests.kernels.cpu.values import make, same_bits

LENGTH = 13
BIG = Layer(k_heads=4, heads=8, dk=64, dv=64)
"""Past the size from which two threads run."""
MIXERS = (*(replace(layer, kind="paired") for layer in LAYERS), BIG)


def run_mixer(cpu, layer, rows, slots, states, steps=None):
    """gates, conv + norm, recurrence + norm of these rows; `states` (h, conv) are changed.

    `steps`: of h and of conv, what is said of the states that rows leave behind.
    """
    steps = steps or [no_steps(state, len(rows)) for state in states]
    f, count = cpu.functions, len(slots)
    slots = torch.tensor(slots, dtype=torch.int32)
    rows = torch.tensor(rows)
    qkvz, ba = layer.qkvz(64)[rows], make("normal", 71, 64, 2 * layer.heads)[rows]
    if (rows == 63).any():
        qkvz, ba = qkvz.clone(), ba.clone()
        qkvz[rows == 63] = float("nan")
        ba[rows == 63] = float("nan")
    decay, beta = torch.empty(count, layer.heads), torch.empty(count, layer.heads)
    f["gates.gdn_gates"](ba=ba, **layer.gates(), decay=decay, beta=beta)()
    qkv = torch.empty(count, layer.channels)
    conv = {**layer.conv(), "conv": states[1], **steps[1]}
    f["conv.conv_l2_norm"](x=qkvz, slots=slots, y=qkv, **conv, **layer.norm())()
    y = torch.empty(count, layer.heads * layer.dv, dtype=torch.bfloat16)
    given = layer.recurrence(1) | {"qkv": qkv, "decay": decay, "beta": beta}
    norm = layer.gated(1) | {"gate": qkvz}
    f["delta.recurrence_norm"](h=states[0], slots=slots, y=y, **steps[0], **given, **norm)()
    return y


def fresh(layer):
    """A pool whose slots hold rests of others, and zeros where a sequence was opened: 1 and 3."""
    h, conv = layer.states(), layer.conv()["conv"]
    for state in (h, conv):
        state[1], state[3] = 0.0, 0.0
    return h, conv


@pytest.fixture(scope="module", params=MIXERS, ids=lambda m: f"{m.heads}x{m.dk}x{m.dv}")
def decoded(cpu, request):
    """One token a step in slot 1: outputs and states."""
    layer = request.param
    states = fresh(layer)
    rows = [run_mixer(cpu, layer, [row], [1], states) for row in range(LENGTH)]
    y = torch.cat(rows)
    assert bool(y.isfinite().all())
    assert layer.kind == "paired" or len(set(map(tuple, y.tolist()))) == LENGTH
    return layer, y, states


def assert_same_slot(states, slot, wanted):
    for state, want in zip(states, wanted, strict=True):
        assert same_bits32(state[slot], want[1])


def assert_others_untouched(layer, states, used):
    others = [slot for slot in range(layer.slots) if slot not in used]
    for state, was in zip(states, fresh(layer), strict=True):
        assert same_bits32(state[others], was[others])


@pytest.mark.parametrize("pieces", ([LENGTH], [4, 9], [1, 5, 7], [2] * 6 + [1]))
def test_prefill_in_any_pieces_is_decode(cpu, decoded, pieces):
    layer, want, states = decoded
    again, at, got = fresh(layer), 0, []
    for piece in pieces:
        got.append(run_mixer(cpu, layer, list(range(at, at + piece)), [1] * piece, again))
        at += piece
    assert same_bits(torch.cat(got), want)
    assert_same_slot(again, 1, states)
    assert_others_untouched(layer, again, {1})


def test_the_slot_does_not_matter(cpu, decoded):
    layer, want, states = decoded
    again = fresh(layer)
    assert same_bits(run_mixer(cpu, layer, list(range(LENGTH)), [3] * LENGTH, again), want)
    assert_same_slot(again, 3, states)


@pytest.mark.parametrize("other", (17, 63), ids=("values", "nan"))
def test_neighbours_do_not_matter(cpu, decoded, other):
    """Between rows of slots 0 and 4, of other values or of NaN."""
    layer, want, states = decoded
    again, got = fresh(layer), []
    for row in range(LENGTH):
        y = run_mixer(cpu, layer, [other, row, other, other], [0, 1, 4, 4], again)
        got.append(y[1:2])
        assert other != 63 or bool(y[0].isnan().all())
    assert same_bits(torch.cat(got), want)
    assert_same_slot(again, 1, states)
    assert_others_untouched(layer, again, {0, 1, 4})


def test_two_sequences_in_one_launch_do_not_meet(cpu, decoded):
    """Their rows alternate; each passes through its own state only."""
    layer, want, states = decoded
    again = fresh(layer)
    rows = [row for row in range(LENGTH) for _ in range(2)]
    y = run_mixer(cpu, layer, rows, [1, 3] * LENGTH, again)
    assert same_bits(y[::2], want)
    assert same_bits(y[1::2], want)
    assert_same_slot(again, 1, states)
    assert_same_slot(again, 3, states)


@pytest.mark.parametrize("width", (2, 4, LENGTH))
def test_a_row_leaves_the_state_that_decode_has_there(cpu, decoded, width):
    """Row j of a verify leaves the bytes that both states have after j + 1 decode steps.

    In any order of the rows that receive them; leaving them moves neither outputs nor states.
    """
    layer, want, _ = decoded
    at = torch.randperm(width, generator=torch.Generator().manual_seed(width)).int()
    at[-1] = -1
    again, plain = fresh(layer), fresh(layer)
    steps = [scattered_steps(state, width) | {"step_rows": at} for state in again]
    y = run_mixer(cpu, layer, list(range(width)), [1] * width, again, steps)
    assert same_bits(y, want[:width])
    for row in range(width):
        run_mixer(cpu, layer, [row], [1], plain)
        for kept, state in zip(steps, plain, strict=True):
            if at[row] >= 0:
                assert same_bits32(kept["steps"][at[row]], state[1])
    for kept, state, decode in zip(steps, again, plain, strict=True):
        assert same_bits32(state, decode)
        assert sum(untouched(kept["steps"])) == len(kept["steps"]) - width + 1


def test_the_state_matters(cpu):
    """Or what is shown above would be of little: an earlier row's change moves the later rows."""
    layer = LAYERS[0]
    one = run_mixer(cpu, layer, [0, 1, 2, 3], [1] * 4, fresh(layer))
    two = run_mixer(cpu, layer, [0, 9, 2, 3], [1] * 4, fresh(layer))
    differs = (one.view(torch.int16) != two.view(torch.int16)).any(-1).tolist()
    assert differs == [False, True, True, True]


def run_moe(cpu, size, rows):
    """Router to blend, fused."""
    f, count = cpu.functions, len(rows)
    x = size.x(64)[rows]
    weights, ids = torch.empty(count, size.count), torch.empty(count, size.count, dtype=torch.int32)
    f["router.router_top_k"](
        x=x, weight=size.router(), weights=weights, ids=ids, count=size.count
    )()
    act = torch.empty(count * size.count, size.inter, dtype=torch.bfloat16)
    f["experts.gate_up_silu"](x=x, ids=ids, weight=size.gate_up(), y=act)()
    y = torch.empty(count, size.hidden, dtype=torch.bfloat16)
    shared = size.shared(64)
    own = {"shared_x": shared["shared_x"][rows], "gate_x": x}
    f["down_blend.shared_down_blend"](
        x=act, ids=ids, weight=size.down(), weights=weights, **{**shared, **own}, y=y
    )()
    return y


@pytest.mark.parametrize("kind", ("normal", "paired"))
@pytest.mark.parametrize("size", (*EXPERTS, replace(EXPERTS[0], hidden=576, inter=128)))
def test_a_row_of_experts_is_the_same_in_any_batch(cpu, size, kind):
    size = replace(size, kind=kind)
    rows = torch.arange(64)
    whole = run_moe(cpu, size, rows)
    assert bool(whole.isfinite().all())
    for row in (0, 31, 63):
        assert same_bits(run_moe(cpu, size, rows[row : row + 1]), whole[row : row + 1])
    for width in (2, 3, 5):
        assert same_bits(run_moe(cpu, size, rows[7 : 7 + width]), whole[7 : 7 + width])
    backwards = rows.flip(0)
    assert same_bits(run_moe(cpu, size, backwards), whole.flip(0))
