"""What a plan says of ops without kernels, and of weights in formats that nobody here allocates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Select, circuit_from_config, layout
from metpipe.memory import Planned, evaluate
from metpipe.resources import kernels_dir

from .conftest import TINY

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.embed*"]}


@pytest.fixture(scope="module")
def quantised(tiny, cpu_set):
    """The tiny model with its layers in NVFP4 and a head of its own."""
    config = TINY | {"quantization_config": NVFP4, "tie_word_embeddings": False}
    made = Planned(circuit_from_config(config, kernels_dir()), cpu_set, Select.all())
    return replace(tiny, planned=made)


def test_an_arena_without_kernels_is_bounded_by_one_kernel_per_op(quantised, cpu_set):
    report = evaluate(quantised)
    bf16 = TINY | {"tie_word_embeddings": False}
    single = Planned(circuit_from_config(bf16, kernels_dir()), cpu_set, Select.reference())
    expected = [layout(single.plan(r.mode, r.rows), r.rows).total for r in report.counts.runs]
    assert [run.arena for run in report.counts.runs] == expected
    term = report.term("arena")
    assert (term.low, term.high, term.status) == (0, max(expected), "uncalibrated")
    assert "not planned: no kernel covers linear in nvfp4/g16, lm_head in nvfp4/g16;" in term.source


def test_what_some_kernels_cover_is_the_lower_end(tiny, cpu_set):
    decode_only = {
        name: replace(rule, modes=rule.modes - {"prefill"}) if "argmax" in name else rule
        for name, rule in cpu_set.rules.rules.items()
    }
    rules = replace(cpu_set.rules, rules=decode_only)
    part = Planned(tiny.planned.circuit, replace(cpu_set, rules=rules), Select.all())
    report = evaluate(replace(tiny, planned=part))
    decode, prefill = report.counts.runs
    assert (decode.uncovered, prefill.uncovered) == ((), ("argmax",))
    whole = evaluate(tiny).counts.runs[0]
    term = report.term("arena")
    assert (term.low, term.high) == (whole.arena, prefill.arena)
    assert term.low < term.high


def test_weights_in_their_declared_format(quantised):
    # A layer, out x k: q 64 x 64, k and v 32 x 64, o 64 x 64, gate||up 192 x 64, down 64 x 96;
    # norms of 64, 64, 16 and 16 in bf16. Embedding and final norm in bf16, the head, 250 x 64, not.
    def nvfp4(out, k):
        return out * k // 2 + out * k // 16 + 4

    matrices = [(64, 64), (32, 64), (32, 64), (64, 64), (192, 64), (64, 96)]
    layer = sum(nvfp4(*shape) for shape in matrices) + 2 * (64 + 64 + 16 + 16)
    total = 3 * layer + nvfp4(250, 64) + 2 * (250 * 64 + 64)
    term = evaluate(quantised).term("weights")
    assert (term.low, term.high, term.status) == (total, total, "uncalibrated")
    assert "nvfp4/g16 as declared" in term.source


def test_terms_stay_exact_where_kernels_cover_bf16(tiny):
    assert {term.status for term in evaluate(tiny).terms} == {"exact"}
