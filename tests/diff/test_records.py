"""Every record that one stage hands to another survives JSON unchanged."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from metpipe.diff.comparison import Comparison, Difference, StateDifference
from metpipe.diff.controls import judge_detection
from metpipe.diff.invariance import Cell
from metpipe.diff.records import Check, Disclosure, MovedBytes, VacuousPair
from metpipe.diff.severity import Severity
from metpipe.diff.trace import Trace
from metpipe.diff.verdict import Evidence, JudgedCase, judge

SEVERITY = Severity(8, 2, 1, float("inf"), 3, 1)
DIFFERENCE = Difference(2, 3, 0, (0, 1), "dtype is float32", SEVERITY)
PREFILL = Difference(None, None, None, (0,))
STATES = (StateDifference(3, (1,)),)
COMPARISON = Comparison("circuit", 4, 8, PREFILL, (DIFFERENCE,), 2, ("l0.attn.k",), STATES)
CELL = Cell("circuit", "width", "alone against width 8", 9, True, 2, 1, 0, 1, SEVERITY, ("l0.k",))
CONTROL = judge_detection(COMPARISON, changed_step=2)
EVIDENCE = Evidence(
    cases=(JudgedCase("prompt 0", COMPARISON, "report"),),
    repeats=(),
    controls=(CONTROL,),
    self_test=(Check("flipped bit", True, "as it must be"),),
    moved=(MovedBytes("prompt 0", "circuit", ("slot 3",)),),
    vacuous=(VacuousPair("legacy", "circuit", False, "same program"),),
    cells=(CELL,),
)
TRACE = Trace(
    prompts=((1,), (5, 6)),
    fed=((2, 7), (3, 8)),
    prefill_digests=("aa", "ab"),
    step_digests=(("bb", "bc"), ("cc", "cd")),
    step_states=(("ee", "ef"), ("eg", "eh")),
    state_digests={"sequence 0, l0.attn.k": "dd"},
    enqueue_ms=(1.0, 2.0),
    step_ms=(3.0, 4.0),
    accepted=((1, 0), (0, 1)),
    drafted=((9,), (10,), (11,)),
    slots=(0, 2),
    computed=3,
)
DISCLOSURE = Disclosure("circuit", {"decode 1": "ee"}, {"norm.rms_norm": "ff"}, graphs=True)


@pytest.mark.parametrize(
    "record",
    [COMPARISON, CONTROL, EVIDENCE, judge(EVIDENCE), TRACE, DISCLOSURE],
    ids=lambda record: type(record).__name__,
)
def test_record_survives_json(record: object) -> None:
    adapter = TypeAdapter(type(record))
    text = json.dumps(adapter.dump_python(record, mode="json"))
    assert adapter.validate_python(json.loads(text)) == record
