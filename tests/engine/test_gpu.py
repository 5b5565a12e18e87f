"""The engine on a GPU: forwards, graphs and digests, on small models of each family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.spilling import restore, save
from tests.engine.hybrid_models import CONFIGS
from tests.engine.opened import CONFIG, opened

pytestmark = pytest.mark.gpu

MODELS = {"dense": CONFIG, "hybrid": CONFIGS["dense"], "experts": CONFIGS["experts"]}
PROMPT = [(37 * i * i + 11 * i + 5) % 200 for i in range(41)]
SELECTS = {
    "legacy": ForwardSelect("legacy", "legacy", Select.reference()),
    "legacy, graphed": ForwardSelect("lg", "legacy", Select.reference(), graphs=True),
    "reference rules": ForwardSelect("cr", "circuit", Select.reference()),
    "circuit": ForwardSelect("c", "circuit", Select.all()),
    "circuit, graphed": ForwardSelect("cg", "circuit", Select.all(), graphs=True),
}
RUNS = (("decode", 1), ("multi_seq", 16), ("verify", 4), ("verify_batch", 6))


def open_small(name: str) -> Model:
    drafts = (("draft", 4),) if name != "dense" else ()
    return opened(
        MODELS[name], device="cuda", slots=8, blocks=80, runs=(*RUNS, *drafts), snapshot_rows=8
    )


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> Model:
    return open_small(request.param)


def everything(model: Model, forward: Forward) -> list[torch.Tensor]:
    """Logits of a prefill, decode steps, a batch, verifies that reject, and what is left of it."""
    found = []
    sequences = [model.open() for _ in range(3)]
    for index, one in enumerate(sequences):
        found.append(forward.prefill(one, PROMPT[index : 30 + index], chunk=17).clone())
    for token in PROMPT[:6]:
        found.append(forward.decode(sequences[0], token).clone())
    for step in range(4):
        found.append(forward.decode_batch(sequences, PROMPT[step : step + 3]).clone())
    found.append(forward.verify(sequences[1], PROMPT[:4]).clone())
    forward.rewind(sequences[1], 2)
    forward.commit(sequences[1], 2)
    found.append(forward.verify_batch(sequences[:2], [PROMPT[:3], PROMPT[4:7]]).clone())
    for one, kept in zip(sequences[:2], (1, 3), strict=True):
        forward.rewind(one, 3 - kept)
        forward.commit(one, kept)
    found.append(forward.decode_batch(sequences, PROMPT[:3]).clone())
    found += [_digests(model, one) for one in sequences]
    if model.drafter_hidden_SD is not None:
        forward.save_hidden([0, 1, 2])
        ids, logits = forward.propose(sequences, PROMPT[:3], 2)
        found += [ids, logits]
    for one in reversed(sequences):
        model.close(one)
    return found


def _digests(model: Model, sequence: Any) -> torch.Tensor:
    text = "".join(model.state_digests(sequence).values())
    return torch.tensor([ord(letter) for letter in text])


def test_every_forward_has_the_same_bits(model):
    found = {}
    for name, select in SELECTS.items():
        forward = model.forward(select)
        found[name] = everything(model, forward)
        disclosed = forward.disclose()
        assert disclosed.graphs == select.graphs
        assert (disclosed.replays > 15) == select.graphs
        forward.close()
    for name, tensors in found.items():
        assert len(tensors) == len(found["legacy"])
        for index, (ours, theirs) in enumerate(zip(found["legacy"], tensors, strict=True)):
            assert torch.equal(_raw(ours), _raw(theirs)), (name, index)
    assert bool(found["legacy"][0].isfinite().all())


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def test_a_row_is_the_same_in_every_width(model):
    """Width, padding and neighbours; prefill against decode of the same tokens."""
    forward = model.forward(SELECTS["circuit"])
    one = model.open()
    alone = [forward.decode(one, token).clone() for token in PROMPT[:20]]
    state = model.state_digests(one)
    model.close(one)
    one = model.open()
    forward.prefill(one, PROMPT[:20])
    assert model.state_digests(one) == state
    model.close(one)
    for width in (2, 3, 5, 8):
        sequences = [model.open() for _ in range(width)]
        for at, wanted in enumerate(alone):
            tokens = [(PROMPT[at] + 3 * row) % 200 for row in range(width)]
            logits = forward.decode_batch(sequences, tokens)
            assert torch.equal(_raw(logits[0]), _raw(wanted)), (width, at)
        assert model.state_digests(sequences[0]) == state
        for sequence in reversed(sequences):
            model.close(sequence)
    forward.close()


def test_a_record_goes_to_the_host_and_back(model):
    forward = model.forward(SELECTS["circuit"])
    one = model.open()
    forward.prefill(one, PROMPT[:21])
    record, state = save(model, one), model.state_digests(one)
    assert record.is_cpu
    other = model.open()
    restore(model, other, record)
    assert model.state_digests(other) == state
    for sequence in (other, one):
        model.close(sequence)
    forward.close()


def test_what_nobody_owns_is_seen_to_move(model):
    one = model.open(reserve=20)
    before = model.unowned_digests(one)
    name = next(iter(model.states))
    pool = model.states[name]
    pool[-2 if model.circuit.states[name].kind == "recurrent" else 40, 0] = 5.0
    after = model.unowned_digests(one)
    assert {key for key in before if before[key] != after[key]} == {name}
    model.close(one)


def test_the_digests_are_the_cpu_s():
    """The same bytes have the same digest on both."""
    content = torch.arange(3000, dtype=torch.int16).view(torch.bfloat16).view(3, 1000)
    there, here = open_small("dense"), opened(CONFIG)
    assert there.hash_rows(content, 5) == here.hash_rows(content, 5)
    assert there.hash_bytes(content) == here.hash_bytes(content)


def test_a_step_s_inputs_are_not_overtaken():
    """Many steps without a wait: none reads the inputs of a later one."""
    model = open_small("dense")
    forward = model.forward(SELECTS["circuit, graphed"])
    one = model.open()
    slow = [forward.decode(one, token).clone() for token in PROMPT]
    model.close(one)
    one = model.open()
    fast = [forward.decode(one, token).clone() for token in PROMPT]
    torch.cuda.synchronize()
    assert torch.equal(_raw(torch.stack(fast)), _raw(torch.stack(slow)))
    model.close(one)
    forward.close()
