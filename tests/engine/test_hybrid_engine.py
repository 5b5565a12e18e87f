"""Hybrids through the engine: prefill, batches, verifies and drafts under every forward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, open_model
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.selection import ForwardSelect
from tests.engine.hybrid_models import CONFIGS, save_hybrid

pytest.importorskip("transformers.models.qwen3_5_moe.modeling_qwen3_5_moe")

LEGACY = ForwardSelect("legacy", "legacy", Select.reference())
REFERENCE = ForwardSelect("circuit_reference", "circuit", Select.reference())
CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())
TOKENS = torch.randint(211, (200,), generator=torch.Generator().manual_seed(1)).tolist()
RUNS = (
    ("decode", 1), ("prefill", 16), ("multi_seq", 4), ("verify", 4), ("verify_batch", 8),
    ("draft", 4),
)  # fmt: skip
SIZES = PoolSizes(
    num_blocks=40,
    num_slots=4,
    block_size=8,
    max_seq_len=128,
    max_prefill_rows=16,
    runs=RUNS,
    snapshot_rows=6,
)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    folder = save_hybrid(tmp_path / "model", request.param, 1)
    checkpoint = open_checkpoint(ModelSource(name="small", checkpoint=str(folder)))
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    return open_model(checkpoint, circuit, open_kernel_sets("cpu", None), SIZES)


def bits(tensor: torch.Tensor) -> bytes:
    assert bool(tensor.float().isfinite().all())
    return tensor.clone().view(torch.int16).numpy().tobytes()


def everything(model: Model, select: ForwardSelect) -> list[tuple[str, object]]:
    """Each mode in turn on three sequences: what was run, and its bits or its states."""
    forward, found = model.forward(select), list[tuple[str, object]]()
    forward.bind_all()
    sequences = [model.open() for _ in range(3)]
    for index, sequence in enumerate(sequences):
        prompt = TOKENS[20 * index : 20 * index + 13 + index]
        found.append(("prefill", bits(forward.prefill(sequence, prompt, chunk=7))))
    for step in range(3):
        found.append(("decode", bits(forward.decode(sequences[0], TOKENS[100 + step]))))
        batch = TOKENS[110 + 3 * step : 113 + 3 * step]
        found.append(("multi_seq", bits(forward.decode_batch(sequences, batch))))
    for kept in (1, 2, 4):
        found.append(("verify", bits(forward.verify(sequences[1], TOKENS[130:134]))))
        forward.commit(sequences[1], kept)
        forward.rewind(sequences[1], 4 - kept)
        found.append(("state", model.state_digests(sequences[1])))
    rows = [TOKENS[1:4], TOKENS[5:7], TOKENS[9:12]]
    found.append(("verify_batch", bits(forward.verify_batch(sequences, rows))))
    forward.save_hidden([2, 4, 7])
    for sequence, kept, width in zip(sequences, (1, 2, 3), (3, 2, 3), strict=True):
        forward.commit(sequence, kept)
        forward.rewind(sequence, width - kept)
    for count in (3, 2):
        ids, logits = forward.propose(sequences, [5, 6, 7], count)
        found += [("draft", bits(logits)), ("drafts", ids.tolist())]
        for sequence in sequences:
            forward.trim(sequence, sequence.draft_length - 1)
        found.append(("multi_seq", bits(forward.decode_batch(sequences, [1, 2, 3]))))
        forward.save_hidden([0, 1, 2])
    found += [("state", model.state_digests(sequence)) for sequence in sequences]
    for sequence in reversed(sequences):
        model.close(sequence)
    forward.close()
    return found


def test_every_mode_has_one_set_of_bits_under_every_forward(model: Model) -> None:
    before = model.allocator.bytes_by_tag()
    legacy = everything(model, LEGACY)
    assert len({what for what, _ in legacy}) == 8
    for select in (REFERENCE, CIRCUIT):
        found = everything(model, select)
        assert [what for (what, a), (_, b) in zip(legacy, found, strict=True) if a != b] == []
    after = model.allocator.bytes_by_tag()
    assert after.pop("tables") == 2 * 4 * SIZES.max_seq_len * model.circuit.dims["rotary_dim"] // 2
    assert after == before


def test_a_rolled_back_verify_leaves_the_states_of_its_kept_rows(model: Model) -> None:
    """Against decode steps of the same tokens, and what follows is equal too."""
    forward = model.forward(LEGACY)
    one, other = model.open(), model.open()
    for sequence in (one, other):
        forward.prefill(sequence, TOKENS[:11])
    forward.verify(one, TOKENS[11:15])
    forward.commit(one, 2)
    forward.rewind(one, 2)
    for token in TOKENS[11:13]:
        forward.decode(other, token)
    assert model.state_digests(one) == model.state_digests(other)
    assert bits(forward.decode(one, 9)) == bits(forward.decode(other, 9))


def test_launches_are_the_rules_and_fewer_when_fused(model: Model) -> None:
    counts = {}
    for select in (LEGACY, REFERENCE, CIRCUIT):
        forward, sequence = model.forward(select), model.open()
        forward.decode(sequence, 70)
        disclosed = forward.disclose()
        counts[select.name] = disclosed.launches_per_step
        if select is REFERENCE:
            reference = disclosed.launches
        if select is LEGACY:
            legacy = disclosed.launches
        model.close(sequence)
        forward.close()
    assert legacy == reference
    assert counts["legacy"] == counts["circuit_reference"]
    assert counts["circuit"] < 0.65 * counts["legacy"]
