"""The engine beside a plain torch text of the families: the model, and chains of its drafts.

Synthetic checkpoints of odd sizes, every family, seed by seed. The tolerance is the oracle's: how
far the plain text rounded to bf16 at every edge is from itself in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from metpipe.engine.checkpoints import Checkpoint, ModelSource
from metpipe.oracle.judgement import Judgement, judge
from tests.engine.hybrid_configs import CONFIGS
from tests.engine.opened import synthetic_of
from tests.engine.plain.hybrid import DraftHead, opened
from tests.engine.plain.layers import BF16, FP32, Store
from tests.engine.speculating import chosen, legacy_of, model_of

PROMPT, STEPS, DRAFTS = 29, 9, 4
SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch's threads cost more than they give at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens_of(vocab: int, seed: int) -> list[int]:
    draws = torch.Generator().manual_seed(100 + seed)
    return torch.randint(vocab, (PROMPT + STEPS,), generator=draws).tolist()


def made(config: Mapping[str, Any], seed: int) -> Checkpoint:
    """Weights with successors, whose roundings grow less from layer to layer, where they can be."""
    weights = "random" if config["tie_word_embeddings"] else "successor"
    return synthetic_of(ModelSource("odd", config=config, seed=seed, weights=weights))


def decoded(checkpoint: Checkpoint, tokens: list[int]) -> list[torch.Tensor]:
    """The engine's logits behind the prompt and behind each further token."""
    model = model_of(checkpoint)
    sequence = model.open()
    with legacy_of(model) as forward:
        rows = [forward.prefill(sequence, tokens[:PROMPT]).clone()]
        rows += [forward.decode(sequence, token).clone() for token in tokens[PROMPT:]]
    return rows


def drafted(checkpoint: Checkpoint, tokens: list[int]) -> tuple[list[list[int]], torch.Tensor]:
    """Chains of drafts behind each further token: the tokens fed, and logits [chains * drafts, V].

    Behind each chain the head keeps its first entry alone, as after a rejected second draft.
    """
    model = model_of(checkpoint)
    sequence = model.open()
    fed, rows = [], []
    with legacy_of(model) as forward:
        forward.prefill(sequence, tokens[:PROMPT])
        for at in range(PROMPT, PROMPT + STEPS - 1):
            forward.decode(sequence, tokens[at])
            forward.save_hidden([0])
            ids, logits = forward.propose([sequence], [tokens[at + 1]], DRAFTS)
            forward.trim(sequence, sequence.draft_length - DRAFTS + 1)
            fed.append([tokens[at + 1], *ids[0, :-1].tolist()])
            rows.append(logits[:, 0].clone())
    return fed, torch.cat(rows)


def plain_drafts(
    checkpoint: Checkpoint, store: Store, tokens: list[int], fed: list[list[int]]
) -> torch.Tensor:
    """The same chains by the plain head, which is fed the engine's drafts."""
    target, head = opened(checkpoint, store)
    assert head is not None
    hidden, _ = target.forward(tokens)
    return torch.cat(
        [_chain(head, hidden[PROMPT + at : PROMPT + at + 1], at, ids) for at, ids in enumerate(fed)]
    )


def _chain(head: DraftHead, hidden: torch.Tensor, kept: int, ids: list[int]) -> torch.Tensor:
    head.trim(kept)
    rows = []
    for token in ids:
        hidden, logits = head.forward([token], hidden)
        rows.append(logits)
    return torch.cat(rows)


def assert_right(found: Judgement, largest: float = 0.2) -> None:
    """`largest`: of the tolerated rms difference; logits have a spread of about 2."""
    assert found.difference is not None
    assert found.difference.max_abs <= found.tolerance.max_abs
    assert found.difference.rms <= found.tolerance.rms
    assert found.clear_flips == 0
    # Noise that isn't small beside the logits would let anything pass.
    assert found.tolerance.rms < largest


def largest_of(config: Mapping[str, Any]) -> float:
    """Random experts choose others on a rounding, and a chain of drafts carries that on."""
    return 0.9 if config["tie_word_embeddings"] else 0.2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model(name: str, seed: int) -> None:
    checkpoint = made(CONFIGS[name], seed)
    tokens = tokens_of(211, seed)
    fp32, bf16 = (
        opened(checkpoint, store)[0].forward(tokens)[1][PROMPT - 1 :] for store in (FP32, BF16)
    )
    found = judge(decoded(checkpoint, tokens), fp32, list(bf16))
    assert_right(found, largest_of(CONFIGS[name]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_drafts(name: str, seed: int) -> None:
    checkpoint = made(CONFIGS[name], seed)
    tokens = tokens_of(211, seed)
    fed, ours = drafted(checkpoint, tokens)
    fp32, bf16 = (plain_drafts(checkpoint, store, tokens, fed) for store in (FP32, BF16))
    assert_right(judge(list(ours), fp32, list(bf16)), largest_of(CONFIGS[name]))


@pytest.mark.parametrize("choice", ["tiny_hybrid", "tiny_qwen3_5"])
def test_the_shipped_models_and_their_drafts(choice: str) -> None:
    checkpoint = chosen(choice, 3)
    tokens = tokens_of(2600, 3)
    fp32, bf16 = (
        opened(checkpoint, store)[0].forward(tokens)[1][PROMPT - 1 :] for store in (FP32, BF16)
    )
    assert_right(judge(decoded(checkpoint, tokens), fp32, list(bf16)))
    fed, ours = drafted(checkpoint, tokens)
    fp32, bf16 = (plain_drafts(checkpoint, store, tokens, fed) for store in (FP32, BF16))
    assert_right(judge(list(ours), fp32, list(bf16)))
