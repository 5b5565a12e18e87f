"""Greedy choice: the lowest index of the greatest, and neither NaN nor -inf ever wins."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.values import CLASSES, make

INF, NAN = float("inf"), float("nan")


def choose(cpu, logits):
    tokens = torch.full((len(logits),), -7, dtype=torch.int32)
    cpu.functions["head.argmax"](logits=logits, tokens=tokens)()
    return tokens.tolist()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("vocab", (1, 15, 16, 17, 67, 576))
def test_argmax_is_the_twin(cpu, module, kind, vocab):
    logits = make(kind, 1, 17, vocab)
    assert choose(cpu, logits) == module("naive.head").argmax(logits=logits).tolist()


@pytest.mark.parametrize(("places", "wins"), (((3, 40), 3), ((40, 66), 40), ((66, 3, 40), 3)))
def test_the_lowest_index_wins_a_tie(cpu, places, wins):
    logits = -torch.ones(1, 67).bfloat16()
    logits[0, list(places)] = 2.0
    assert choose(cpu, logits) == [wins]


def test_zeros_of_both_signs_tie(cpu):
    logits = torch.full((1, 40), -1.0).bfloat16()
    logits[0, 20], logits[0, 30] = -0.0, 0.0
    assert choose(cpu, logits) == [20]


@pytest.mark.parametrize("fill", (NAN, -INF), ids=("all_nan", "all_minus_inf"))
@pytest.mark.parametrize("vocab", (5, 67))
def test_a_row_of_what_never_wins_gives_zero(cpu, fill, vocab):
    assert choose(cpu, torch.full((2, vocab), fill).bfloat16()) == [0, 0]


def test_a_nan_before_or_after_does_not_matter(cpu):
    logits = torch.full((1, 67), NAN).bfloat16()
    logits[0, 50] = -3e38
    assert choose(cpu, logits) == [50]


def test_infinity_wins(cpu):
    logits = make("normal", 1, 1, 67)
    logits[0, 9] = INF
    assert choose(cpu, logits) == [9]


def test_tokens_may_be_a_column(cpu):
    logits, tokens = make("normal", 1, 3, 67), torch.zeros((3, 1), dtype=torch.int32)
    cpu.functions["head.argmax"](logits=logits, tokens=tokens)()
    assert tokens[:, 0].tolist() == choose(cpu, logits)
