"""A forward's bits depend on the tokens alone: not on chunks, slots, blocks or tenants."""

from __future__ import annotations

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.legacy.class_defaults import DENSE
from metpipe.engine.legacy.dense import DenseShape
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.errors import ConfigError
from tests.engine.opened import CONFIG, opened

LEGACY = ForwardSelect("legacy", "legacy", Select.reference())
REFERENCE = ForwardSelect("circuit_reference", "circuit", Select.reference())
CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())
PROMPT = [(37 * i) % 236 + 64 for i in range(45)]
TOKENS = [70, 81, 92, 103]


@pytest.fixture(scope="module")
def model() -> Model:
    return opened()


def bits(logits: torch.Tensor) -> bytes:
    return logits.clone().view(torch.int16).numpy().tobytes()


def run(model: Model, select: ForwardSelect, prompt: list[int], tokens: list[int]) -> list[bytes]:
    """The bits of the prefill's logits and of each step's."""
    forward = model.forward(select)
    sequence = model.open()
    try:
        found = [bits(forward.prefill(sequence, prompt))]
        found += [bits(forward.decode(sequence, token)) for token in tokens]
    finally:
        model.close(sequence)
        forward.close()
    return found


@pytest.mark.parametrize("select", [REFERENCE, CIRCUIT], ids=lambda select: select.name)
def test_a_circuit_forward_has_the_bits_of_legacy(model, select):
    legacy = run(model, LEGACY, PROMPT, TOKENS)
    assert run(model, select, PROMPT, TOKENS) == legacy
    assert len(set(legacy)) == 5


@pytest.mark.parametrize("chunk", [1, 7, 16, 44])
def test_a_chunked_prefill_has_the_bits_of_a_single_one(model, chunk):
    whole = run(model, CIRCUIT, PROMPT, TOKENS)
    forward = model.forward(CIRCUIT)
    sequence = model.open()
    chunked = [bits(forward.prefill(sequence, PROMPT, chunk))]
    chunked += [bits(forward.decode(sequence, token)) for token in TOKENS]
    model.close(sequence)
    forward.close()
    assert chunked == whole


def test_prefill_has_the_bits_of_decoding_the_same_tokens(model):
    assert run(model, CIRCUIT, PROMPT, [])[0] == run(model, CIRCUIT, PROMPT[:1], PROMPT[1:])[-1]


def test_blocks_of_a_former_tenant_do_not_matter(model):
    fresh = run(opened(), CIRCUIT, PROMPT, TOKENS)
    run(model, CIRCUIT, [299 - token for token in PROMPT], TOKENS)
    assert run(model, CIRCUIT, PROMPT, TOKENS) == fresh


def test_another_slot_and_scattered_blocks_give_the_same_bits(model):
    alone = run(model, CIRCUIT, PROMPT, TOKENS)
    others = [model.open()]
    model.pool.reserve(others[0], 50)
    held = [model.pool.blocks.take() for _ in range(5)]
    for unit in (held[1], held[4], held[0]):
        model.pool.blocks.give(unit)
    assert run(model, CIRCUIT, PROMPT, TOKENS) == alone
    for unit in (held[2], held[3]):
        model.pool.blocks.give(unit)
    model.close(others[0])


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_the_block_size_gives_the_same_bits(model, block_size):
    other = opened(blocks=640 // block_size + 1, block_size=block_size)
    assert run(other, CIRCUIT, PROMPT, TOKENS) == run(model, CIRCUIT, PROMPT, TOKENS)


def test_a_changed_token_moves_its_own_step_and_no_earlier_one(model):
    before = run(model, CIRCUIT, PROMPT, TOKENS)
    after = run(model, CIRCUIT, PROMPT, [70, 81, 93, 103])
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False, False]


def test_states_are_equal_under_both_forwards_and_unowned_bytes_stay(model):
    digests = []
    for select in (LEGACY, CIRCUIT):
        forward, sequence = model.forward(select), model.open()
        model.pool.reserve(sequence, 49)
        before = model.unowned_digests(sequence)
        forward.prefill(sequence, PROMPT)
        for token in TOKENS:
            forward.decode(sequence, token)
        digests.append(model.state_digests(sequence))
        assert model.unowned_digests(sequence) == before
        model.close(sequence)
        forward.close()
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 4


def test_a_stray_write_moves_the_unowned_digest(model):
    sequence = model.open()
    model.pool.reserve(sequence, 20)
    before = model.unowned_digests(sequence)
    stray = model.pool.block_size * model.pool.blocks.size - 1
    model.states["l1.attn.v"].view(torch.int16)[stray, 3] ^= 1
    after = model.unowned_digests(sequence)
    model.states["l1.attn.v"].view(torch.int16)[stray, 3] ^= 1
    model.close(sequence)
    assert [name for name in after if after[name] != before[name]] == ["l1.attn.v"]


def test_the_disclosure_says_what_ran(model):
    forward, sequence = model.forward(CIRCUIT), model.open()
    forward.prefill(sequence, PROMPT)
    for token in TOKENS:
        forward.decode(sequence, token)
    seen = forward.disclose()
    model.close(sequence)
    forward.close()
    assert set(seen.plan_digests) == {"prefill 45", "decode 1"}
    assert seen.launches["embed.embed"] == 5
    assert seen.launches["linear.qkv"] == 10
    assert "linear.linear" in seen.kernel_digests
    assert all(len(digest) == 64 for digest in seen.kernel_digests.values())
    assert {row.mode: row.bit_identical > 0 for row in seen.coverage} == {
        "decode": True,
        "prefill": True,
    }


def test_fewer_launches_under_more_rules(model):
    counts = {}
    for select in (LEGACY, REFERENCE, CIRCUIT):
        forward, sequence = model.forward(select), model.open()
        forward.decode(sequence, 70)
        counts[select.name] = forward.disclose().launches_per_step
        model.close(sequence)
        forward.close()
    assert counts["legacy"] == counts["circuit_reference"]
    assert counts["circuit"] < counts["legacy"]


def test_closing_forwards_gives_every_buffer_back(model):
    before = model.allocator.bytes_by_tag()
    for select in (LEGACY, REFERENCE, CIRCUIT):
        run(model, select, PROMPT, TOKENS)
    assert model.allocator.bytes_by_tag() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": False},
        {"model_type": "qwen2", "head_dim": None},
        {"model_type": "mistral", "num_key_value_heads": 3, "sliding_window": None},
        {
            "model_type": "llama",
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ],
    ids=["llama with biases", "qwen2", "mistral", "llama3 rope"],
)
def test_every_family_member_is_equal_under_both_forwards(changes):
    config = CONFIG | changes
    if config["model_type"] in ("qwen2", "mistral"):
        config.pop("attention_bias")
    model = opened(config)
    assert run(model, CIRCUIT, PROMPT, TOKENS) == run(model, LEGACY, PROMPT, TOKENS)


@pytest.mark.parametrize(
    ("model_type", "kv_heads", "head_dim"),
    [("llama", 4, 16), ("mistral", 8, 16), ("qwen2", 32, 16), ("qwen3", 32, 128)],
)
def test_the_legacy_forward_takes_each_class_s_own_defaults(model_type, kv_heads, head_dim):
    transformers = pytest.importorskip("transformers")
    config = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 9,
    }
    shape = DenseShape.from_config(config)
    assert (shape.num_kv_heads, shape.head_dim) == (kv_heads, head_dim)
    theirs = transformers.AutoConfig.for_model(**config)
    assert theirs.num_key_value_heads == kv_heads
    assert (getattr(theirs, "head_dim", None) or 16) == head_dim
    assert shape.rope(config).theta == theirs.rope_parameters["rope_theta"]
    for key, value in DENSE[model_type].items():
        assert getattr(theirs, key, False) == value, key


@pytest.mark.parametrize("absent", ["hidden_size", "num_hidden_layers", "intermediate_size"])
def test_a_key_without_a_default_is_named_when_it_is_missing(absent):
    config = {key: value for key, value in CONFIG.items() if key != absent}
    with pytest.raises(ConfigError, match=f"the key '{absent}' is missing, and there is no def"):
        DenseShape.from_config(config)


def test_a_lever_that_no_rule_has_is_refused_by_name(model):
    select = ForwardSelect("mine", "circuit", Select.all(), frozenset({"fast_and_loose"}))
    with pytest.raises(ConfigError, match=r"variants\.mine\.levers: .* 'fast_and_loose'"):
        model.forward(select)


def test_a_null_is_an_absent_key_to_the_reference_too():
    config = {**CONFIG, "rms_norm_eps": None, "rope_theta": None}
    shape = DenseShape.from_config(config)
    assert shape.eps == 1e-6
    yarn = {"rope_type": "yarn", "factor": 2.0, "attention_factor": None}
    rope = shape.rope({**config, "rope_scaling": yarn, "max_position_embeddings": 512})
    assert rope.theta == 10000.0
    assert rope.values == {"factor": 2.0, "original_max_position_embeddings": 512}
