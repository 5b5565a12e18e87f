"""Every serve flag is honoured, only bounds a plan, or is refused by name."""

from __future__ import annotations

import pytest

from metpipe.config import Serve
from metpipe.engine.serve_flags import FLAGS, PLANNED, Only, executed_serve
from metpipe.errors import ConfigError
from metpipe.memory.serve import serve_from_config
from tests.runs import composed

DEFAULTS = composed().serve.model_dump()
OTHER = {
    "kv_cache_dtype": "fp8",
    "lm_head_dtype": "nvfp4",
    "weight_quantization": "nvfp4",
    "expert_quantization": "fp8",
    "mtp_quantization": "nvfp4",
    "speculative": True,
    "dflash": True,
    "dflash_gamma": 4,
    "ssm_h_dtype": "f16-pool",
    "ssm_rollback_mode": "replay",
    "enable_prefix_caching": True,
    "high_speed_swap": True,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "expert_parallel_size": 2,
    "rank": 1,
}


def test_the_table_holds_every_serve_key_and_no_other():
    assert set(FLAGS) == set(Serve.model_fields)


def test_the_defaults_are_executed():
    serve = executed_serve(DEFAULTS)
    assert serve.block_size == 16
    assert serve.max_seq_len == DEFAULTS["max_seq_len"]


def test_every_refused_flag_has_a_case_here():
    assert set(OTHER) == {name for name, rule in FLAGS.items() if isinstance(rule, Only)}


@pytest.mark.parametrize("name", OTHER)
def test_a_flag_that_is_not_executed_is_refused_by_name(name):
    said = str(OTHER[name]).lower() if OTHER[name] is True else OTHER[name]
    with pytest.raises(ConfigError, match=rf"serve\.{name}={said} is not executed"):
        executed_serve(DEFAULTS | {name: OTHER[name]})


@pytest.mark.parametrize("name", OTHER)
def test_nobody_is_sent_to_a_plan_that_refuses_the_flag_too(name):
    flags = DEFAULTS | {name: OTHER[name]}
    with pytest.raises(ConfigError) as refusal:
        executed_serve(flags)
    if "pipeline=memory" in str(refusal.value):
        assert serve_from_config(flags).block_size == 16
    else:
        with pytest.raises(ConfigError, match=f"serve.{name}"):
            serve_from_config(flags)


def test_a_rank_that_is_not_the_head_is_told_to_use_the_head():
    with pytest.raises(ConfigError, match="run the diff on the head"):
        executed_serve(DEFAULTS | {"rank": 3, "tensor_parallel_size": 4})


@pytest.mark.parametrize("name", ["max_seq_len", "block_size", "max_prefill_tokens"])
def test_an_honoured_flag_arrives(name):
    assert getattr(executed_serve(DEFAULTS | {name: 33}), name) == 33


def test_planned_flags_do_not_stop_an_execution():
    changed = {name: 5 for name, rule in FLAGS.items() if rule == PLANNED}
    assert executed_serve(DEFAULTS | changed) == executed_serve(DEFAULTS)
