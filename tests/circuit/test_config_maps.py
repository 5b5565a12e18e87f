"""config.json of the dense families: every key classified, class defaults, refusals by name."""

from __future__ import annotations

import json
import math

import pytest

from metpipe.circuit import BadCircuit, RefusedConfig, Shape, resolve_checkpoint
from metpipe.circuit.config_map_toml import parse_config_map
from metpipe.circuit.config_reader import resolve_shape
from metpipe.errors import ConfigError

from .families import FAMILIES, config, frozen, library, resolve

CONFIGS = frozen("configs.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_exist_are_understood(name: str) -> None:
    found = resolve_checkpoint(CONFIGS[name], library=library(), source=name)
    assert found.arch == "dense_gqa"
    assert found.model_type == CONFIGS[name]["model_type"]


@pytest.mark.parametrize(
    ("name", "dims", "eps", "theta"),
    [
        ("smollm2-135m", (30, 576, 1536, 49152, 9, 3, 64), 1e-5, 1e5),
        ("llama-3.1-8b", (32, 4096, 14336, 128256, 32, 8, 128), 1e-5, 5e5),
        ("qwen2.5-7b", (28, 3584, 18944, 152064, 28, 4, 128), 1e-6, 1e6),
        ("qwen3-0.6b", (28, 1024, 3072, 151936, 16, 8, 128), 1e-6, 1e6),
        ("mistral-7b-v0.3", (32, 4096, 14336, 32768, 32, 8, 128), 1e-5, 1e6),
    ],
)
def test_published_shapes(name: str, dims: tuple[int, ...], eps: float, theta: float) -> None:
    found = resolve_checkpoint(CONFIGS[name], library=library())
    names = ("layers", "hidden", "inter", "vocab", "q_heads", "kv_heads", "head_dim")
    assert tuple(found.dims[dim] for dim in names) == dims
    assert float(found.params["rms_norm_eps"]) == eps
    assert json.loads(found.params["rope"])["rope_theta"] == theta


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_unclassified_key_is_refused_by_name(model_type: str) -> None:
    with pytest.raises(RefusedConfig) as caught:
        resolve(model_type, attention_sinks=4)
    message = str(caught.value)
    assert message.startswith("some/config.json: the key 'attention_sinks' is not classified")
    assert "dense_gqa.config.toml" in message


def test_an_unclassified_inner_key_is_named_with_its_path() -> None:
    with pytest.raises(RefusedConfig, match=r"the key 'rope_parameters\.wavelength' is not"):
        resolve("llama", rope_parameters={"rope_type": "default", "wavelength": 3})


@pytest.mark.parametrize("model_type", ["gpt2", None])
def test_an_unknown_model_type_names_the_known_ones(model_type: object) -> None:
    wanted = "'gpt2'" if model_type == "gpt2" else "no key 'model_type'"
    with pytest.raises(RefusedConfig, match=wanted) as caught:
        resolve_checkpoint({**config("llama"), "model_type": model_type}, library=library())
    for known in ("llama", "mistral", "qwen2", "qwen3"):
        assert f" {known}, " in str(caught.value)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(RefusedConfig, match=f"some/config.json: the key '{key}' is missing"):
        resolve("qwen3", **{key: ...})


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "64"])
def test_a_size_must_be_a_positive_integer(value: object) -> None:
    with pytest.raises(RefusedConfig, match="hidden_size must be a positive integer"):
        resolve("llama", hidden_size=value)


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "max_position_embeddings"])
@pytest.mark.parametrize("value", ["1e-6", 0, -1.0, True, math.inf, math.nan])
def test_a_param_that_counts_must_be_a_number_above_zero(key: str, value: object) -> None:
    with pytest.raises(RefusedConfig, match=f"some/config.json: {key} must be a number above 0"):
        resolve("llama", **{key: value})


def test_scaled_positions_need_numbers_and_a_truth() -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0}
    with pytest.raises(RefusedConfig, match=r'rope_scaling\.factor must be .* it is "two"'):
        resolve("llama", rope_scaling={**yarn, "factor": "two"})
    with pytest.raises(RefusedConfig, match=r'rope_scaling\.truncate must be true or .* "no"'):
        resolve("llama", rope_scaling={**yarn, "truncate": "no"})


@pytest.mark.parametrize(
    ("model_type", "heads", "expected"),
    [
        ("llama", 4, {"kv_heads": 4, "head_dim": 16}),
        ("qwen2", 32, {"kv_heads": 32, "head_dim": 16, "attn_bias": 1}),
        ("qwen3", 32, {"kv_heads": 32, "head_dim": 128, "qk_norm": 1}),
        ("mistral", 32, {"kv_heads": 8, "head_dim": 16}),
    ],
)
def test_absent_keys_take_the_defaults_of_their_class(
    model_type: str, heads: int, expected: dict[str, int]
) -> None:
    """Of transformers' config classes: a Qwen2 config without the key has 32 key-value heads."""
    keys = {"num_attention_heads": heads, "hidden_size": 16 * heads, "num_key_value_heads": ...}
    dims = resolve(model_type, **keys).dims
    off = dict.fromkeys(("attn_bias", "o_bias", "mlp_bias", "qk_norm", "tie"), 0)
    wanted = {**off, **expected}
    assert {name: dims[name] for name in wanted} == wanted


@pytest.mark.parametrize("model_type", FAMILIES)
def test_null_key_value_heads_are_as_many_as_query_heads(model_type: str) -> None:
    assert resolve(model_type, num_key_value_heads=None).dims["kv_heads"] == 4


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_stated_head_dim_wins(model_type: str) -> None:
    assert resolve(model_type, head_dim=24).dims["head_dim"] == 24


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_default_of_the_norm_is_1e_6(model_type: str) -> None:
    assert float(resolve(model_type).params["rms_norm_eps"]) == 1e-6
    assert float(resolve(model_type, rms_norm_eps=1e-5).params["rms_norm_eps"]) == 1e-5


@pytest.mark.parametrize(
    ("model_type", "key", "value", "why"),
    [
        ("mistral", "sliding_window", 4096, "an attention window"),
        ("qwen2", "use_sliding_window", True, "an attention window"),
        ("qwen3", "use_sliding_window", True, "an attention window"),
        ("qwen3", "use_sliding_window", 0, "an attention window"),
        ("llama", "hidden_act", "gelu", "SwiGLU"),
        ("mistral", "attention_bias", True, "no such bias"),
        ("qwen2", "mlp_bias", True, "no such bias"),
        ("llama", "partial_rotary_factor", 0.5, "all channels"),
        ("llama", "is_encoder_decoder", True, "decoder"),
        ("llama", "pruned_heads", {"0": [1]}, "pruned"),
        ("llama", "quantization", {"bits": 4}, "quantised"),
    ],
)
def test_what_no_circuit_expresses_is_refused_by_name(
    model_type: str, key: str, value: object, why: str
) -> None:
    with pytest.raises(RefusedConfig, match=f"some/config.json: {key} = .*{why}"):
        resolve(model_type, **{key: value})


def test_an_absent_window_of_mistral_is_the_default_window() -> None:
    with pytest.raises(RefusedConfig, match=r"sliding_window = 4096 \(absent"):
        resolve("mistral", sliding_window=...)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_window_that_is_switched_off_is_fine(model_type: str) -> None:
    resolve(model_type, sliding_window=131072, use_sliding_window=False, max_window_layers=28)


def test_layer_types_must_be_full_attention() -> None:
    resolve("qwen3", layer_types=["full_attention", "full_attention"])
    with pytest.raises(RefusedConfig, match="layer 1 is 'sliding_attention'"):
        resolve("qwen3", layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(RefusedConfig, match="each of the 2 layers"):
        resolve("qwen3", layer_types=["full_attention"])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "why"),
    [(4, 3, 16, "no multiple of kv_heads = 3"), (4, 2, 15, "no multiple of 2")],
)
def test_sizes_that_do_not_divide(heads: int, kv_heads: int, head_dim: int, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        resolve("llama", num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {
            "rope_theta": 5e5,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        },
    ],
    ids=["scaling", "old type", "parameters", "both agreeing"],
)
def test_old_and_new_rope_keys_say_the_same(keys: dict[str, object]) -> None:
    rope = json.loads(resolve("llama", max_position_embeddings=8192, **keys).params["rope"])
    # Without the original length, the length itself stands in for it.
    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "original_max_position_embeddings": 8192,
        **LLAMA3,
    }


def test_without_rope_keys_the_default_is_theta_10000() -> None:
    rope = json.loads(resolve("qwen2").params["rope"])
    assert rope == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_parameters.rope_type = 'dynamic'"),
        ({"rope_type": "longrope"}, "'longrope'"),
        ({"rope_type": "yarn"}, "rope_type 'yarn' needs 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs 'low_freq_factor'"),
        ({"rope_type": "default", "factor": 8.0}, "rope_parameters.factor means nothing"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}, "rope_parameters.mscale = 1.0"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "'rope_parameters.full_attention'"),
        (["yarn"], "rope_parameters must be an object"),
    ],
)
def test_rope_parameters_that_are_not_served(rope: object, message: str) -> None:
    with pytest.raises(RefusedConfig, match=message):
        resolve("llama", rope_parameters=rope)


def test_two_keys_that_contradict_each_other_are_both_named() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    with pytest.raises(RefusedConfig, match=r"rope_parameters\.rope_theta .* rope_theta = 10000"):
        resolve("llama", rope_theta=10000.0, rope_parameters=rope)


def test_the_node_params_carry_what_the_kernels_need() -> None:
    circuit = resolve("llama", rms_norm_eps=1e-5, rope_theta=5e5).circuit
    by_id = {node.id: node.params for node in circuit.nodes}
    assert float(by_id["l1.attn.input_norm"]["eps"]) == 1e-5
    assert by_id["l1.attn.input_norm"]["weight_form"] == "plain"
    assert float(by_id["l0.attn.attend"]["scale"]) == 1 / math.sqrt(16)
    assert json.loads(by_id["l0.attn.rope"]["rope"])["rope_theta"] == 5e5


MAP = """
schema = 1
arch = "toy"
model_types = ["toy"]
[layers]
count = "layers"
uniform = "full_attention"
[dims]
hidden = "hidden"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MAP.replace("schema = 1", "schema = 2"), "reads schema 1"),
        (MAP + 'colour = { key = "a", shade = 2 }', "unknown key 'shade'"),
        (MAP + 'half = { key = "a", or_div = ["hidden"] }', "or_div must name two dims"),
        (MAP + '[keys]\nsize = { like = "length" }', "no key 'length' to be like"),
        (MAP + "[keys]\nsize = { default = 3 }", "'require' is missing"),
        (MAP + "[[check]]\ndim = 'hidden'\nmultiple_of = 2.5\nwhy = ''", "a dim or a number"),
        (MAP.replace("arch", "ark"), "'arch' is missing"),
        (MAP + "[", "not valid TOML"),
    ],
)
def test_a_map_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=rf"toy\.config\.toml.*{message}"):
        parse_config_map(text, "toy.config.toml")


def shape_of(more: str, source: str = "c", **config: object) -> Shape:
    """The shape of a config under MAP and some more lines of it."""
    found = parse_config_map(MAP + more, "m")
    return resolve_shape({"layers": 2, "hidden": 8, **config}, found, source)


def test_values_can_be_renamed() -> None:
    shape = shape_of('[keys]\nact = { param = "act", values = { swish = "silu" } }', act="swish")
    assert shape.params == {"act": '"silu"'}


def test_a_presence_is_a_switch() -> None:
    more = 'latent = { key = "latent_size", present = true }'
    assert shape_of(more, latent_size=7).dims["latent"] == 1
    assert shape_of(more, latent_size=None).dims["latent"] == 0


def test_a_size_can_be_one_of_a_few() -> None:
    more = 'kernel = { key = "conv_kernel", allowed = [3, 4] }'
    assert shape_of(more, conv_kernel=4).dims["kernel"] == 4
    with pytest.raises(RefusedConfig, match="conv_kernel = 5, and only 3, 4 is supported"):
        shape_of(more, conv_kernel=5)


LETTERS = """
[[layers.source]]
key = "pattern"
values = { M = "mamba", "*" = "full_attention" }
why = "no mixer"
trailing = "draft_layers"
[[layers.source]]
key = "ratios"
values = { 0 = "sliding_attention", 4 = "compressed_sparse_attention" }
why = "no compressor"
"""


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({}, ("full_attention",) * 2),
        ({"pattern": "M*"}, ("mamba", "full_attention")),
        ({"pattern": "M*M", "draft_layers": 1}, ("mamba", "full_attention")),
        ({"ratios": [0, 4]}, ("sliding_attention", "compressed_sparse_attention")),
    ],
)
def test_layer_kinds_from_letters_and_numbers(
    config: dict[str, object], kinds: tuple[str, ...]
) -> None:
    assert shape_of(LETTERS, **config).layer_kinds == kinds


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pattern": "ME"}, "pattern: layer 1 is 'E', and only .*: no mixer"),
        ({"pattern": "M*", "ratios": [0, 4]}, "pattern and ratios both name layer kinds"),
        ({"ratios": [0, 4, 0]}, "ratios must list one kind for each of the 2 layers"),
    ],
)
def test_layer_kinds_that_are_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(RefusedConfig, match=message):
        shape_of(LETTERS, **config)


def test_without_a_uniform_kind_a_source_must_be_there() -> None:
    found = parse_config_map(MAP.replace('uniform = "full_attention"', "") + LETTERS, "m")
    with pytest.raises(RefusedConfig, match="the key pattern or ratios is missing"):
        resolve_shape({"layers": 2, "hidden": 8}, found, "c")


def test_keys_may_lie_in_an_inner_object() -> None:
    text = MAP.replace(
        "[layers]", 'nest = "text_config"\n[root]\nvision_config = "ignore"\n[layers]'
    )
    found = parse_config_map(text, "m")
    inner = {"layers": 1, "hidden": 8}
    config = {"model_type": "toy", "text_config": inner, "vision_config": {}}
    assert resolve_shape(config, found, "c").dims == {"hidden": 8}
    with pytest.raises(RefusedConfig, match="c: the key 'audio_config' is not classified"):
        resolve_shape({**config, "audio_config": {}}, found, "c")
    with pytest.raises(RefusedConfig, match="c, text_config: the key 'hidden' is missing"):
        resolve_shape({**config, "text_config": {"layers": 1}}, found, "c")
    with pytest.raises(RefusedConfig, match="the key 'text_config' is missing"):
        resolve_shape({"model_type": "toy"}, found, "c")


def test_every_refusal_is_a_config_error() -> None:
    assert issubclass(RefusedConfig, ConfigError)
    assert issubclass(BadCircuit, ConfigError)
