"""Tables against the definition, and the scalings against transformers' own frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metpipe.engine.rope_tables import SCALING_KEYS, RopeSpec, rope_spec, rope_tables

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def test_position_zero_does_not_rotate():
    cos, sin = rope_tables(RopeSpec("default", 10000.0, 64), 5)
    assert cos.shape == sin.shape == (5, 32)
    assert (cos[0] == 1).all()
    assert (sin[0] == 0).all()


def test_the_first_pair_turns_one_radian_a_position():
    cos, sin = rope_tables(RopeSpec("default", 10000.0, 64), 4)
    assert cos[3, 0] == np.float32(math.cos(3.0))
    assert sin[3, 0] == np.float32(math.sin(3.0))


def test_a_pair_turns_theta_to_the_minus_its_share():
    cos, _ = rope_tables(RopeSpec("default", 500000.0, 128), 2)
    assert cos[1, 40] == pytest.approx(math.cos(500000.0 ** (-80 / 128)), abs=1e-7)


def test_linear_scaling_halves_the_positions():
    plain, _ = rope_tables(RopeSpec("default", 10000.0, 32), 9)
    slow, _ = rope_tables(RopeSpec("linear", 10000.0, 32, (("factor", 2.0),)), 17)
    np.testing.assert_allclose(slow[16], plain[8], atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [("llama3", LLAMA3), ("yarn", YARN), ("linear", {"factor": 8.0}), ("default", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_are_those_of_transformers(kind, scaling):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=65536,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **scaling},
    )
    if kind == "default":
        inverse, factor = 1.0 / (10000.0 ** (np.arange(0, 64, 2) / 64)), 1.0
    else:
        tensor, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        inverse = tensor.numpy()
    cos, sin = rope_tables(RopeSpec(kind, 10000.0, 64, tuple(scaling.items())), 300)
    angles = np.arange(300)[:, None] * inverse[None, :].astype(np.float64)
    np.testing.assert_allclose(cos, np.cos(angles) * factor, atol=3e-5)
    np.testing.assert_allclose(sin, np.sin(angles) * factor, atol=3e-5)


def test_a_missing_scaling_key_is_named():
    with pytest.raises(ValueError, match="'low_freq_factor'"):
        rope_tables(RopeSpec("llama3", 1e4, 8, (("factor", 2.0),)), 4)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'longrope'"):
        rope_tables(RopeSpec("longrope", 1e4, 8), 4)


def test_keys_that_do_not_change_the_table_do_not_make_another_spec():
    plain = rope_spec({"rope_type": "default", "rope_theta": 1e4}, 8)
    config = {
        "rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True, "factor": 4.0,
    }  # fmt: skip
    assert rope_spec(config, 8) == plain
    assert rope_spec(config, 16) != plain
    assert rope_spec({**config, "rope_type": "linear"}, 8).values == {"factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("linear", {"factor": 8.0}),
        ("llama3", LLAMA3),
        ("yarn", {**YARN, "attention_factor": 1.1, "truncate": False}),
    ],
)
def test_each_key_of_a_spec_changes_its_table(kind, given):
    spec = rope_spec({"rope_type": kind, "rope_theta": 1e4, **given}, 64)
    assert spec.values.keys() == given.keys() == set(SCALING_KEYS[kind])
    tables = rope_tables(spec, 50)
    for key, value in given.items():
        changed = {**given, key: True if value is False else value * 1.5}
        other = rope_spec({"rope_type": kind, "rope_theta": 1e4, **changed}, 64)
        assert not np.array_equal(rope_tables(other, 50)[0], tables[0]), key
