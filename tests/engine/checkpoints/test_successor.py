"""Weights with successors: the same bits everywhere, and rows of the head as they are described."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from metpipe.engine.checkpoints import ModelSource, open_checkpoint, synthetic
from metpipe.engine.checkpoints.digest import RawTensor, raw_digest
from metpipe.engine.checkpoints.draws import bf16_values, order, uniform
from metpipe.engine.checkpoints.successor_weights import BEAT, CLEAR_RUN, leap
from metpipe.engine.checkpoints.synthetic_weights import Synthetic
from metpipe.errors import ConfigError

VOCAB, HIDDEN = 1103, 150
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, 48),
    "model.layers.1.self_attn.o_proj.weight": (HIDDEN, 48),
    "model.layers.1.input_layernorm.weight": (HIDDEN,),
    "lm_head.weight": (VOCAB, HIDDEN),
    "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
    "mtp.layers.0.self_attn.o_proj.weight": (HIDDEN, 48),
}


def made(seed: int = 0, **shapes: tuple[int, ...]) -> Synthetic:
    return synthetic({}, {**SHAPES, **shapes}, seed, weights="successor")


def test_bits_are_fixed_forever() -> None:
    """New values here change every recorded run; if only the first does, raise CONSTRUCTION."""
    checkpoint = made()
    content = raw_digest(
        RawTensor(
            name,
            "BF16",
            shape,
            [checkpoint.read(name).view(torch.int16).numpy().astype("<i2").tobytes()],
        )
        for name, shape in sorted(SHAPES.items())
    )
    assert content == "d4e6f3fbc14270ca40d4d003b211041a2017ea23faf424943fd3a85071ced8d6"
    assert checkpoint.digest() == "47af6d4716eaea1ea2fe147de73506b0ba95a0c560a694c50da2a550cff6f62a"


def _orders() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The cycle's tokens, and each token's row of logits when the stream is its embedding."""
    checkpoint = made()
    table = checkpoint.read("model.embed_tokens.weight").float()
    logits = table @ checkpoint.read("lm_head.weight").float().T
    return torch.from_numpy(order(0, "successors", VOCAB)), table, logits


def test_the_two_successors_stand_out() -> None:
    cycle, _, logits = _orders()
    f, g = torch.empty_like(cycle), torch.empty_like(cycle)
    f[cycle] = cycle.roll(-1)
    g[cycle] = cycle.roll(-(BEAT + 1))
    tops = logits.topk(2).indices
    both = torch.stack((f, g), 1).sort().values == tops.sort().values
    assert both.all(1).float().mean() > 0.97
    clear = torch.zeros(VOCAB, dtype=torch.bool)
    clear[cycle[torch.arange(VOCAB) % BEAT < CLEAR_RUN]] = True
    rows = torch.arange(VOCAB)
    leads = logits[rows, f] - logits[rows, g]
    assert leads[clear].mean() > 5 * leads[~clear].mean() > 0
    assert bool((leads[clear] > 0).float().mean() > 0.99)


@pytest.mark.parametrize("vocab", [1103, 2600, 3000, 248320])
def test_a_text_comes_back_to_no_token_for_a_while(vocab: int) -> None:
    """By steps of one and leaps, as many of each as close the cycle."""
    assert leap(vocab) % BEAT == 1
    rounds = (leaps + -leaps * leap(vocab) % vocab for leaps in range(1, vocab))
    assert min(rounds) > 0.4 * math.sqrt(vocab)


def test_the_draft_head_passes_the_embedding_on() -> None:
    matrix = made().read("mtp.fc.weight").float()
    passed = matrix[:, :HIDDEN].diagonal()
    assert passed.mean().item() == pytest.approx(1, abs=0.05)
    rest = matrix.clone()
    rest[:, :HIDDEN].fill_diagonal_(0)
    assert rest[:, :HIDDEN].std().item() == pytest.approx(rest[:, HIDDEN:].std().item(), rel=0.1)
    assert 0.5 < rest.std().item() * math.sqrt(2 * HIDDEN) < 1.5


def test_more_layers_write_less_each() -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    few, many = made(), made(**{f"model.layers.{i}.x.weight": (2, 2) for i in range(8)})
    ratio = few.read(name).float().std() / many.read(name).float().std()
    assert ratio.item() == pytest.approx(2, rel=0.02)
    head = "mtp.layers.0.self_attn.o_proj.weight"
    assert torch.equal(few.read(head), many.read(head))


def test_a_head_that_is_the_table_is_refused() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if name != "lm_head.weight"}
    source = ModelSource("tied", config={}, weights="successor")
    with pytest.raises(ConfigError, match=r"model\.weights=successor: .*tie_word_embeddings=false"):
        open_checkpoint(source, shapes_of=lambda _: shapes)
    assert not open_checkpoint(source).has_weights


def test_other_weights_are_another_digest() -> None:
    random = synthetic({}, SHAPES, 0)
    assert random.digest() != made().digest() != made(1).digest()
    assert not torch.equal(made().read("lm_head.weight"), made(1).read("lm_head.weight"))


def test_draws_of_numbers_and_of_an_order() -> None:
    numbers, shuffled = uniform(3, "a", 5000), order(3, "b", 5000)
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
    assert np.array_equal(np.sort(shuffled), np.arange(5000))
    assert abs(np.corrcoef(shuffled, np.arange(5000))[0, 1]) < 0.05
    assert not np.array_equal(shuffled, order(4, "b", 5000))


def test_bf16_bits_and_back() -> None:
    bits = np.array([0x3F80, 0xC000, 0x0000, 0x3EAB], dtype=np.uint16)
    assert bf16_values(bits).tolist() == [1.0, -2.0, 0.0, 0.333984375]
