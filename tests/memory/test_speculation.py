"""What drafts add to a plan of this engine: snapshots, a draft cache, verify and draft steps."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest

from metpipe.circuit import Select
from metpipe.errors import ConfigError
from metpipe.memory.evaluate import evaluate
from metpipe.memory.kernel_set import read_kernel_set
from metpipe.memory.planned import Planned
from metpipe.memory.point import Workload
from metpipe.memory.queries import verify_question
from metpipe.memory.speculation import num_drafts
from metpipe.resources import kernels_dir
from tests.circuit.hybrids import TINY, circuit_of


@pytest.fixture
def hybrid(tiny):
    """A point of the smallest hybrid with a draft head: two sequences of 40 + 8 tokens."""
    circuit = circuit_of(TINY["qwen3_5"])
    planned = Planned(circuit, read_kernel_set(kernels_dir() / "cpu"), Select.all())
    return replace(tiny, planned=planned, workload=Workload(40, 8, 2), slots=2)


def speculating(point, drafts):
    return replace(point, serve=replace(point.serve, speculative=True, num_drafts=drafts))


def size(report, key):
    return report.term(key).low


def test_each_draft_keeps_a_state_between_the_rows(hybrid):
    plain, drafted = evaluate(hybrid), evaluate(speculating(hybrid, 3))
    per_slot = size(plain, "states") // 3  # two slots and the dummy
    assert size(drafted, "states") - size(plain, "states") == 2 * 3 * per_slot


def test_the_draft_head_has_a_cache_of_its_own(hybrid):
    plain, drafted = evaluate(hybrid), evaluate(speculating(hybrid, 1))
    main = [s for s in drafted.counts.states if s.section == "main" and s.holding == "blocks"]
    draft = [s for s in drafted.counts.states if s.section == "draft"]
    assert size(plain, "kv") == sum(state.bytes for state in main)
    assert size(drafted, "kv") == size(plain, "kv") + sum(state.bytes for state in draft)
    assert draft


def test_the_verify_step_is_the_widest_of_its_rows(hybrid):
    runs = {run.label: run.rows for run in evaluate(speculating(hybrid, 3)).counts.runs}
    assert runs == {"decode": 2, "prefill": 40, "verify_batch": 8, "draft": 2}


NOTE = "serve.num_drafts is null: 1 draft a step, one for each layer of the model's draft head"


def test_a_depth_that_no_flag_says_is_the_models_and_is_told(hybrid):
    own, one = evaluate(speculating(hybrid, None)), evaluate(speculating(hybrid, 1))
    assert own.terms == one.terms
    assert {run.label: run.rows for run in own.counts.runs}["verify_batch"] == 4
    assert NOTE in own.notes
    assert NOTE not in one.notes
    assert NOTE not in evaluate(hybrid).notes


def test_a_draft_head_of_two_layers_makes_two_drafts(hybrid):
    """Each layer predicts one token further."""
    states = tuple(
        replace(group, states=(*group.states, *group.states)) if group.section == "draft" else group
        for group in hybrid.planned.states
    )
    planned = copy(hybrid.planned)
    planned.states = states
    assert num_drafts(speculating(replace(hybrid, planned=planned), None)) == 2


def test_the_verify_that_a_serve_has_by_itself_may_be_narrowed(hybrid):
    """A question about the widest verify starts from it."""
    assert verify_question(speculating(hybrid, None)).now == 2
    assert verify_question(speculating(hybrid, 3)).now == 4
    assert verify_question(hybrid).now is None


def test_a_model_without_a_draft_head_does_not_speculate(tiny):
    with pytest.raises(ConfigError, match="the model has no draft head"):
        evaluate(speculating(tiny, 2))
