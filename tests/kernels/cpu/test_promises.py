"""What INVARIANCE.toml promises, tried on small models: logits and states, byte for byte."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.tiny_hybrid import TinyHybrid, TinyMoe
from tests.kernels.cpu.tiny_model import VOCAB, TinyModel
from tests.kernels.cpu.values import same_bits

TOKENS = [(37 * i * i + 11 * i + 5) % VOCAB for i in range(41)]
TABLE = [0, 1, 2]
SCATTERED = [29, 3, 17]


def feed(model, chunks, table=TABLE, tokens=TOKENS):
    """Logits of every token, fed in chunks of these lengths."""
    logits, at = [], 0
    for chunk in chunks:
        logits.append(model.step(tokens[at : at + chunk], range(at, at + chunk), [table] * chunk))
        at += chunk
    assert at == len(tokens)
    return torch.cat(logits)


MODELS = {"dense_gqa": TinyModel, "qwen3_5": TinyHybrid, "qwen3_6_moe": TinyMoe}


@pytest.fixture(scope="module", params=MODELS)
def make_model(cpu, request):
    """Makes a fresh model of the family."""
    return lambda: MODELS[request.param](cpu.functions)


@pytest.fixture(scope="module")
def decoded(make_model):
    """One token at a time, alone, in blocks 0, 1, 2: logits and state digests."""
    model = make_model()
    logits = feed(model, [1] * 41)
    assert bool(logits.isfinite().all())
    assert len(set(logits.argmax(-1).tolist())) > 3
    return logits, model.state(TABLE, 41)


@pytest.mark.parametrize(
    "chunks",
    ([41], [16, 16, 9], [1, 40], [5, 16, 1, 19], [15, 17, 9], [2] * 20 + [1]),
    ids=lambda chunks: "+".join(map(str, chunks[:4])),
)
def test_prefill_in_any_chunks_is_decode(make_model, decoded, chunks):
    """Axes prefill_chunks, prefill_decode, and verify: chunks of two are a verify of K = 2."""
    model = make_model()
    assert same_bits(feed(model, chunks), decoded[0])
    assert model.state(TABLE, 41) == decoded[1]


def test_a_rejected_draft_leaves_no_trace(make_model, decoded):
    """Axis verify: the second row of each step is wrong, and the first one's states are kept."""
    model = make_model()
    rows = []
    for at, token in enumerate(TOKENS):
        rows.append(model.step([token, (token + 1) % VOCAB], [at, at + 1], [TABLE] * 2)[:1])
        model.keep(0)
    assert same_bits(torch.cat(rows), decoded[0])
    assert model.state(TABLE, 41) == decoded[1]


def test_blocks_do_not_matter(make_model, decoded):
    """Axis slot."""
    model = make_model()
    assert same_bits(feed(model, [1] * 41, SCATTERED), decoded[0])
    assert model.state(SCATTERED, 41) == decoded[1]


@pytest.mark.parametrize("width", (2, 3, 5, 8))
def test_width_and_neighbours_do_not_matter(make_model, decoded, width):
    """Axes width and neighbours: row 1 beside sequences of other tokens, started at other times."""
    model = make_model()
    tables = [[3 * row + 2, 3 * row, 3 * row + 1] for row in range(width)]
    rows = []
    for at in range(41):
        tokens = [TOKENS[at] if row == 1 else TOKENS[(at * row + 7) % 41] for row in range(width)]
        rows.append(model.step(tokens, [at] * width, tables)[1:2])
    assert same_bits(torch.cat(rows), decoded[0])
    assert model.state(tables[1], 41) == decoded[1]


def test_a_neighbour_of_nan_does_not_matter(make_model, decoded):
    """Axis neighbours: a token outside the table is a row of NaN all the way to its logits."""
    model = make_model()
    rows = [
        model.step([VOCAB, token], [at, at], [[30, 31, 32], TABLE])
        for at, token in enumerate(TOKENS)
    ]
    assert bool(torch.stack([row[0] for row in rows]).isnan().all())
    assert same_bits(torch.stack([row[1] for row in rows]), decoded[0])


def test_padding_does_not_matter(make_model, decoded):
    """Axis padding: dummy rows share one block and one slot that no sequence reads."""
    model = make_model()
    rows = [
        model.step([token, -1, -1, -1], [at, 0, 0, 0], [TABLE] + [[39, 39, 39]] * 3)[:1]
        for at, token in enumerate(TOKENS)
    ]
    assert same_bits(torch.cat(rows), decoded[0])


def test_rows_of_the_experts_model_are_routed_apart(cpu):
    """Or its promises would be those of a dense one."""
    model = TinyMoe(cpu.functions)
    feed(model, [41])
    assert len(model.chosen) > 20


def test_the_model_sees_its_past(make_model, decoded):
    """Or the promises above would be of little: one token changed moves every later row's bytes."""
    model = make_model()
    tokens = [*TOKENS]
    tokens[20] = (tokens[20] + 1) % VOCAB
    changed = feed(model, [41], tokens=tokens)
    differs = (changed.view(torch.int16) != decoded[0].view(torch.int16)).any(-1)
    assert differs.tolist() == [False] * 20 + [True] * 21
