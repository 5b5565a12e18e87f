"""Which formats a plan counts, and which mixtures it refuses."""

from __future__ import annotations

import pytest

from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.errors import ConfigError
from metpipe.memory import quantised_formats
from metpipe.stages.live import Live
from metpipe.stages.served import served
from tests.engine.opened import CONFIG, opened
from tests.runs import composed

QUANTISED = CONFIG | {
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"},
}


def live(*overrides: str) -> Live:
    run = composed("pipeline=memory", *overrides)
    model = run.model.model_copy(update={"name": "small", "config": QUANTISED})
    return Live(run.model_copy(update={"model": model}), open_kernel_sets("cpu", None))


def test_the_declared_formats_are_planned_unless_bf16_is_asked_for():
    assert quantised_formats(served(live())[1].nodes) == ("fp8/tensor",)
    config, circuit = served(live("serve.weight_quantization=bf16"))
    assert quantised_formats(circuit.nodes) == ()
    assert "quantization_config" not in config


def test_bf16_of_one_part_is_refused_where_that_part_is_quantised():
    with pytest.raises(ConfigError, match=r"serve\.lm_head_dtype=bf16: .*fp8/tensor"):
        served(live("serve.lm_head_dtype=bf16"))
    everywhere = live("serve.lm_head_dtype=bf16", "serve.weight_quantization=bf16")
    assert quantised_formats(served(everywhere)[1].nodes) == ()


def test_a_quantised_model_is_not_executed():
    with pytest.raises(ConfigError, match=r"fp8/tensor.*executes bf16 weights only; plan"):
        opened(QUANTISED)
