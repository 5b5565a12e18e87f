"""The tiny hybrids: drafts that are often right, texts in no circle, and nothing idle in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch

from metpipe.diff.prompts import prompts
from tests.engine.plain.hybrid import Target, opened
from tests.engine.plain.layers import FP32, Attention, DeltaNet, Experts
from tests.engine.speculating import chosen, legacy_of, model_of, verified_drafts

CHOICES = ("tiny_hybrid", "tiny_qwen3_5")
TOKENS = 257


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch's threads cost more than they give at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("seed", "prompt"), [(0, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize("choice", CHOICES)
def test_drafts_are_often_right_and_the_text_runs_in_no_circle(
    choice: str, seed: int, prompt: int
) -> None:
    model = model_of(chosen(choice, seed))
    given = prompts(3, model.vocab_size)[prompt]
    with legacy_of(model) as forward:
        counts, text = verified_drafts(forward, given, 2, 160)
        for width in (3, 5, 8):
            whole = [count == width - 1 for count in verified_drafts(forward, given, width, 16)[0]]
            assert any(whole), width
            assert not all(whole), width
    assert 0.4 <= sum(counts) / len(counts) <= 0.8
    assert len(text) >= TOKENS
    assert len(set(text[:TOKENS])) > 180
    assert _longest_repeat(text) < TOKENS // 8


def _longest_repeat(text: Sequence[int]) -> int:
    """The longest stretch that is followed by itself at once."""
    longest = 0
    for period in range(1, len(text) // 2):
        run = 0
        for before, token in zip(text, text[period:], strict=False):
            run = run + 1 if token == before else 0
            if run >= period:
                longest = max(longest, period)
    return longest


def test_a_circle_would_be_seen() -> None:
    assert _longest_repeat([1, 2, 3, 4, 5, 6]) == 0
    assert _longest_repeat([1, 2, 3, 4, 5, 3, 4, 5, 6]) == 3
    assert _longest_repeat([9, *([1, 2, 3] * 40)]) == 57


@cache
def _text(choice: str) -> list[int]:
    """A prompt of 23 tokens and 40 greedy ones behind it."""
    checkpoint = chosen(choice, 0)
    target, _ = opened(checkpoint, FP32)
    text = prompts(1, len(target.ends.table))[0]
    logits = target.forward(text)[1]
    while len(text) < 63:
        text.append(int(logits[-1].argmax()))
        logits = target.forward(text[-1:])[1]
    return text


def _logits(target: Target, text: Sequence[int]) -> torch.Tensor:
    """Behind each of the last 40 tokens, in two passes, so that states are carried over."""
    target.forward(text[:23])
    return target.forward(text[23:])[1]


@cache
def _exact(choice: str) -> torch.Tensor:
    return _logits(opened(chosen(choice, 0), FP32)[0], _text(choice))


class Nothing:
    """A part of a layer that adds nothing to the stream."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("choice", CHOICES)
def test_every_layer_matters(choice: str) -> None:
    checkpoint = chosen(choice, 0)
    for part in ("mixers", "forwards"):
        for layer in range(8):
            target, _ = opened(checkpoint, FP32)
            getattr(target, part)[layer] = Nothing()
            found, exact = _logits(target, _text(choice)), _exact(choice)
            assert float((found - exact).std() / exact.std()) > 0.1, (part, layer)


def _forget_states(target: Target) -> None:
    for mixer in target.mixers:
        if isinstance(mixer, DeltaNet):
            mixer.state = None


def _forget_windows(target: Target) -> None:
    for mixer in target.mixers:
        if isinstance(mixer, DeltaNet):
            mixer.window = None


def _forget_keys(target: Target) -> None:
    for mixer in target.mixers:
        if isinstance(mixer, Attention):
            mixer.keys = [torch.zeros_like(key) for key in mixer.keys]


def _forget_values(target: Target) -> None:
    for mixer in target.mixers:
        if isinstance(mixer, Attention):
            mixer.values = [torch.zeros_like(value) for value in mixer.values]


@pytest.mark.parametrize("forget", [_forget_states, _forget_windows, _forget_keys, _forget_values])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_state_matters(choice: str, forget) -> None:
    """Forgotten before each of 40 steps, it changes tokens, not only bits."""
    target, text = opened(chosen(choice, 0), FP32)[0], _text(choice)
    target.forward(text[:23])
    rows = []
    for token in text[23:]:
        forget(target)
        rows.append(target.forward([token])[1])
    found, exact = torch.cat(rows), _exact(choice)
    assert int((found.argmax(-1) != exact.argmax(-1)).sum()) >= 1
    assert float((found - exact).std() / exact.std()) > 0.2


def test_every_expert_is_chosen() -> None:
    target, head = opened(chosen("tiny_hybrid", 0), FP32)
    hidden, _ = target.forward(_text("tiny_hybrid"))
    head.forward(_text("tiny_hybrid"), hidden)
    for layer in [*target.forwards, head.feed]:
        assert isinstance(layer, Experts)
        assert set(layer.chosen) == set(range(12))
        assert max(layer.chosen.values()) < 0.25 * sum(layer.chosen.values())
