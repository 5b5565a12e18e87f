"""What is refused before anything is counted, and with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate, serve_from_config

FLAGS = {
    "max_seq_len": 4096,
    "max_batch_size": 8,
    "gpu_memory_utilization": 0.9,
    "kv_cache_dtype": "bf16",
    "ssm_h_dtype": "f32",
    "block_size": 16,
    "max_prefill_tokens": 8192,
    "speculative": False,
    "num_drafts": None,
    "tensor_parallel_size": 1,
}


def test_flags_become_a_serve():
    serve = serve_from_config(FLAGS)
    assert (serve.max_seq_len, serve.gpu_memory_utilization, serve.block_size) == (4096, 0.9, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_sise": 16}, r"serve\.block_sise: not a serve flag"),
        ({"block_size": 0}, r"serve\.block_size: a whole number of at least 1"),
        ({"block_size": 1.5}, r"serve\.block_size: a whole number"),
        ({"max_seq_len": None}, r"serve\.max_seq_len: the memory plan needs it"),
        ({"gpu_memory_utilization": 1.5}, r"serve\.gpu_memory_utilization: a share"),
        ({"kv_cache_dtype": 8}, r"serve\.kv_cache_dtype: a name"),
        ({"tensor_parallel_size": 0}, r"serve\.tensor_parallel_size: a whole number of at least 1"),
        ({"rank": 1}, r"serve\.rank=1: a plan counts every rank.*set serve\.rank=0"),
        ({"dflash": True}, r"serve\.dflash=true: this engine allocates nothing.*=false"),
        ({"weight_quantization": "nvfp4"}, r"serve\.weight_quantization=nvfp4"),
    ],
)
def test_bad_flags_are_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        serve_from_config(FLAGS | change)


def test_keys_and_values_are_in_bf16_where_nothing_says_otherwise():
    assert serve_from_config(FLAGS | {"kv_cache_dtype": None}).kv_cache_dtype == "bf16"
    assert serve_from_config(FLAGS | {"kv_cache_dtype": "f32"}).kv_cache_dtype == "f32"


@pytest.mark.parametrize("name", ["max_seq_len", "kv_cache_dtype", "max_prefill_tokens"])
def test_no_flag_has_a_default(name):
    with pytest.raises(ConfigError, match=rf"serve\.{name}"):
        serve_from_config({key: value for key, value in FLAGS.items() if key != name})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load": {"concurrency": 129}}, r"concurrency=129 is more than the 128 slots.*max_batch"),
        ({"slots": 2}, r"concurrency=3 is more than the 2 slots"),
        (
            {"load": {"isl": 40941}},
            r"workload\.isl=40941 and workload\.osl=20 are 40961 tokens, above serve\.max_seq_len",
        ),
        ({"load": {"isl": 0}}, r"workload\.isl: must be at least 1"),
        ({"slots": 0}, r"slots: must be at least 1, got 0"),
        ({"serve": {"block_size": 0}}, r"serve\.block_size: must be at least 1"),
        (
            {"serve": {"kv_cache_dtype": "nvfp4"}},
            r"serve\.kv_cache_dtype=nvfp4: no state can.* 'nvfp4'",
        ),
        ({"serve": {"gpu_memory_utilization": 0.0}}, r"gpu_memory_utilization=0\.0: a share"),
        ({"accounting": "guess"}, r"memory\.accounting=guess.*metpipe"),
    ],
)
def test_impossible_serves_are_refused(tiny, on, change, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(on(tiny, **change))


def test_slots_bound_the_concurrency_and_replace_the_batch_size(tiny, on):
    assert evaluate(on(tiny, slots=3)).answer == "fits"


def test_a_cpu_without_a_size_is_refused(tiny, devices, on):
    with pytest.raises(ConfigError, match=r"hardware=cpu.*hardware\.memory_bytes"):
        evaluate(on(tiny, device=devices.by_id["cpu"]))


def test_strict_refuses_what_is_noted_otherwise(tiny, devices, on):
    gb10 = replace(devices.by_id["gb10"], strict=True)
    with pytest.raises(ConfigError, match=r"0\.9 is above the ceiling 0\.85 of gb10"):
        evaluate(on(tiny, device=gb10, serve={"gpu_memory_utilization": 0.9}))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("b200", r"nobody calibrated b200: the class declares no \[memory\] table"),
        ("gb10", r"gb10 was calibrated on met's engine, and nobody calibrated metpipe's there"),
        ("h100-sxm", r"hopper was calibrated on metpipe's engine on h200-sxm, .* on h100-sxm"),
    ],
)
def test_require_calibrated_refuses_a_range(tiny, devices, on, device, message):
    asked = replace(devices.by_id[device], require_calibrated=True)
    with pytest.raises(ConfigError, match=rf"hardware={device}: .*{message}, so its driver term"):
        evaluate(on(tiny, device=asked))


def test_require_calibrated_takes_a_law_of_this_engine_and_device(tiny, devices, on):
    h200 = replace(devices.by_id["h200-sxm"], require_calibrated=True)
    assert evaluate(on(tiny, device=h200)).term("driver").status == "calibrated"
