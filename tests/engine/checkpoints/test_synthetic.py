"""Synthetic weights: the same bits everywhere, each tensor on its own, and lively logits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import yaml

from metpipe.engine.checkpoints import synthetic
from metpipe.engine.checkpoints.digest import RawTensor, raw_digest
from metpipe.engine.checkpoints.draws import CHUNK_DRAWS, bf16_bits
from metpipe.engine.checkpoints.synthetic_weights import Synthetic
from metpipe.errors import ConfigError
from metpipe.resources import conf_dir

SHAPES = {
    "model.embed_tokens.weight": (512, 96),
    "model.layers.0.input_layernorm.weight": (96,),
    "model.layers.0.self_attn.q_proj.weight": (101, 96),
    "model.layers.0.self_attn.q_proj.bias": (101,),
    "lm_head.weight": (512, 96),
}


def _content(checkpoint: Synthetic) -> str:
    return raw_digest(
        RawTensor(
            name,
            "BF16",
            shape,
            [checkpoint.read(name).view(torch.int16).numpy().astype("<i2").tobytes()],
        )
        for name, shape in sorted(checkpoint.tensors.items())
    )


def test_bits_are_fixed_forever() -> None:
    """New values here change every recorded run; if only the first does, raise GENERATOR."""
    made = synthetic({}, SHAPES, 0)
    assert _content(made) == "b7b5b9d3058114a72f3a78289fd39d4e4e5df41ae0128fa6daed2a9fe53257dc"
    assert made.digest() == "fb1e897f31cf5dfbff97822d3e68fbe9591ba5d10e9d7010352daa852f5635fc"


def test_bits_are_those_of_splitmix64_through_the_table() -> None:
    """Written out again, one number at a time, with Python's integers and fractions."""
    name, key = "a.bias", _key(5, "a.bias")
    read = synthetic({}, {name: (10,)}, 5).read(name)
    values = []
    for index in range(10):
        draw = _splitmix(key, index // 4) >> (16 * (index % 4)) & 0xFFFF
        x = (draw - 32767.5) / 32768
        unit = math.sqrt(1 / 3 + 6 / 11 + 9 / 19)
        values.append((x + 3 * x**9) * (0.2 / unit))
    expected = torch.tensor(values, dtype=torch.float64).float().bfloat16()
    # The ninth power may be off by an ulp of f64, which only a tie of bf16 could show.
    assert torch.equal(read, expected)


def test_ties_are_rounded_to_even() -> None:
    bits = np.arange(0x3F80_0000, 0x3F84_0000, 0x1000, dtype=np.uint32)  # 1 to 1.03 by 2^-11
    values = bits.view(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(bf16_bits(values).view(np.int16), expected)
    assert np.array_equal(bf16_bits(-values).view(np.int16), expected | -0x8000)


def test_a_tensor_depends_on_seed_name_and_place_only() -> None:
    whole, name = synthetic({}, SHAPES, 3), "lm_head.weight"
    alone = synthetic({}, {name: SHAPES[name]}, 3)
    assert torch.equal(whole.read(name), alone.read(name))
    assert torch.equal(whole.read(name), whole.read(name))
    longer = synthetic({}, {name: (513, 96)}, 3).read(name)
    assert torch.equal(longer[:512], alone.read(name))
    assert not torch.equal(synthetic({}, {name: SHAPES[name]}, 4).read(name), alone.read(name))
    assert not torch.equal(whole.read("model.embed_tokens.weight"), alone.read(name))


@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
def test_chunks_join_without_seam(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 8 * 64 + extra
    shape = {"a.bias": (count,)}
    whole = synthetic({}, shape, 1).read("a.bias")
    assert count < CHUNK_DRAWS
    monkeypatch.setattr("metpipe.engine.checkpoints.draws.CHUNK_DRAWS", 64)
    assert torch.equal(synthetic({}, shape, 1).read("a.bias"), whole)


def test_what_is_read_belongs_to_the_reader() -> None:
    made = synthetic({}, SHAPES, 0)
    made.read("lm_head.weight").zero_()
    assert made.read("lm_head.weight").abs().sum() > 0


def test_values_are_spread_as_stated() -> None:
    made = synthetic({}, SHAPES, 0)
    head = made.read("lm_head.weight").float()
    assert abs(head.std().item() * math.sqrt(96) / 2 - 1) < 0.02
    assert abs(head.mean().item()) < 0.01
    assert head.abs().max().item() < 3.5 * 2 / math.sqrt(96)
    assert len(torch.unique(head)) > 1000
    norm = made.read("model.layers.0.input_layernorm.weight").float()
    assert abs(norm.mean().item() - 1) < 0.1
    assert 0.1 < norm.std().item() < 0.3
    bias = made.read("model.layers.0.self_attn.q_proj.bias").float()
    assert bias.std().item() > 0.1
    assert not any(torch.isnan(made.read(name)).any() for name in SHAPES)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Torch's threads cost more than they give at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("choice", ["tiny_dense", "tiny_llama", "tiny_qwen2"])
def test_logits_are_lively(choice: str) -> None:
    """Their spread is a trained model's, an early token matters late, greedy doesn't circle."""
    transformers = pytest.importorskip("transformers", reason="the extra `oracle` isn't installed")
    section = yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())
    config = transformers.AutoConfig.for_model(**section["config"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    made = synthetic(section["config"], shapes, 0)
    model.load_state_dict({name: made.read(name) for name in shapes}, strict=False)
    model.tie_weights()
    ids = torch.arange(3, 43)[None] * 7
    with torch.no_grad():
        logits, other = (model(i).logits.float()[0] for i in (ids, ids + 7 * (ids == 21)))
        greedy = model.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None)[0, 40:]
    assert torch.isfinite(logits).all()
    assert logits.std(dim=-1).min().item() > 1
    assert logits.std(dim=-1).max().item() < 4
    assert (logits[-1] - other[-1]).std().item() > 0.1
    assert len(set(greedy.tolist())) >= 8


def test_streams_are_independent() -> None:
    made = synthetic({}, {f"{index}.weight": (256, 64) for index in range(8)}, 0)
    rows = np.stack([made.read(f"{i}.weight").float().numpy().reshape(-1) for i in range(8)])
    correlations = np.corrcoef(rows) - np.eye(8)
    assert np.abs(correlations).max() < 0.04  # 5 sigma of 16,384 draws
    lagged = [np.corrcoef(rows[0][:-lag], rows[0][lag:])[0, 1] for lag in range(1, 9)]
    assert np.abs(lagged).max() < 0.04


def test_facts() -> None:
    made = synthetic({"model_type": "llama"}, SHAPES, 9, name="tiny")
    assert (made.name, made.reader, made.path) == ("tiny", "synthetic", None)
    assert made.source == "synthetic weights of model tiny (seed 9)"
    assert made.config == {"model_type": "llama"}
    assert made.tokenizer() is None
    assert made.digest() != synthetic({}, SHAPES, 8).digest()
    assert not synthetic({}, {}, 0).has_weights


def test_weights_of_norms_by_one_plus_lie_around_zero() -> None:
    shapes = {"a.q_norm.weight": (999,), "b.norm.weight": (999,), "c.norm.weight": (999,)}
    made = synthetic({}, shapes, 0, one_plus={"a.q_norm.weight", "b.norm.weight"})
    centres = [made.read(name).float().mean().item() for name in shapes]
    assert centres == pytest.approx([3, 0, 1], abs=0.1)
    assert made.digest() != synthetic({}, shapes, 0).digest()


def test_a_recurrent_layer_remembers_for_a_while() -> None:
    """Most decays lie between a hundredth and all but a hundredth, as `gdn_gates` makes them."""
    heads = (4000,)
    made = synthetic({}, {"x.A_log": heads, "x.dt_bias": heads}, 0)
    a_log, bias = (made.read(name).float() for name in made.tensors)
    a = torch.randn(heads, generator=torch.Generator().manual_seed(0))
    kept = torch.exp(-a_log.exp() * torch.nn.functional.softplus(a + bias))
    low, middle, high = kept.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    assert 0.01 < low < 0.5
    assert 0.6 < middle < 0.9
    assert 0.9 < high < 0.999
    assert 4 < a_log.exp().mean().item() < 8


def test_stacked_experts_are_spread_as_single_ones() -> None:
    shapes = {"x.experts.down_proj": (5, 40, 64), "x.experts.3.down_proj.weight": (40, 64)}
    made = synthetic({}, shapes, 0)
    for name in shapes:
        assert made.read(name).float().std().item() == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.parametrize("name", ["model.layers.0.experts_log", "model.layers.0.scales"])
def test_a_tensor_of_unknown_kind_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} .*synthetic weights are defined for"):
        synthetic({}, {name: (4,)}, 0)


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no shape was given for tensor z\.weight"):
        synthetic({}, SHAPES, 0).read("z.weight")


def _key(seed: int, name: str) -> int:
    import hashlib

    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _splitmix(key: int, index: int) -> int:
    mask = (1 << 64) - 1
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
