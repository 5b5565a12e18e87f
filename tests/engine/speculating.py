"""One sequence of a model with a draft head, decoded greedily with its drafts under legacy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from metpipe.circuit import Select
from metpipe.diff.speculation import count_accepted
from metpipe.engine.checkpoints import Checkpoint, ModelSource
from metpipe.engine.forward import Forward
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, open_model
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.selection import ForwardSelect
from metpipe.resources import conf_dir
from tests.engine.opened import synthetic_of

__all__ = ["chosen", "greedy", "legacy_of", "model_of", "verified_drafts"]

LEGACY = ForwardSelect("legacy", "legacy", Select.reference())
WIDEST = 8


def chosen(choice: str, seed: int) -> Checkpoint:
    """The synthetic checkpoint of a choice of conf/model."""
    section: dict[str, Any] = yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())
    source = ModelSource(
        choice, config=section["config"], seed=seed, weights=section.get("weights", "random")
    )
    return synthetic_of(source)


def model_of(checkpoint: Checkpoint, max_seq_len: int = 512) -> Model:
    """The model, with room for one sequence, its drafts and a verify of 8 rows."""
    sizes = PoolSizes(
        num_blocks=max_seq_len // 16 + 2,
        num_slots=1,
        block_size=16,
        max_seq_len=max_seq_len,
        max_prefill_rows=128,
        runs=(("decode", 1), ("prefill", 128), ("verify", WIDEST), ("draft", 1)),
        snapshot_rows=WIDEST - 1,
    )
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    return open_model(checkpoint, circuit, open_kernel_sets("cpu", None), sizes)


@contextmanager
def legacy_of(model: Model) -> Iterator[Forward]:
    """The hand-written forward, closed afterwards."""
    forward = model.forward(LEGACY)
    try:
        yield forward
    finally:
        forward.close()


def greedy(forward: Forward, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens behind a prompt, by plain steps."""
    model = forward.model
    sequence = model.open()
    tokens = [int(forward.prefill(sequence, prompt).argmax())]
    while len(tokens) < count:
        tokens.append(int(forward.decode(sequence, tokens[-1]).argmax()))
    model.close(sequence)
    return tokens


def verified_drafts(
    forward: Forward, prompt: Sequence[int], width: int, steps: int
) -> tuple[list[int], list[int]]:
    """Verify steps of `width` rows, their drafts the head's: (accept counts, tokens committed)."""
    model = forward.model
    sequence = model.open()
    first = int(forward.prefill(sequence, prompt).argmax())
    tokens = [first, int(forward.decode(sequence, first).argmax())]
    forward.save_hidden([0])
    counts = []
    for _ in range(steps):
        known = sequence.draft_length
        drafts = forward.propose([sequence], tokens[-1:], width - 1)[0][0].tolist()
        fed = [tokens[-1], *drafts]
        outputs = forward.verify(sequence, fed).argmax(-1).tolist()
        accepted = count_accepted(fed, outputs)
        forward.save_hidden([accepted])
        forward.trim(sequence, known + min(accepted + 1, width - 1))
        forward.rewind(sequence, width - 1 - accepted)
        forward.commit(sequence, accepted + 1)
        counts.append(accepted)
        tokens += outputs[: accepted + 1]
    model.close(sequence)
    return counts, tokens
