"""What a stage of the diff is called, and which run of which mode a name stands for."""

from __future__ import annotations

import pytest

from metpipe.config import MODES
from metpipe.stages.stage_names import StageName


@pytest.mark.parametrize(
    ("text", "mode", "kind", "of"),
    [
        ("reference", "single", "reference", ""),
        ("repeat:2", "single", "repeat", "2"),
        ("variant:circuit", "single", "variant", "circuit"),
        ("control:circuit", "single", "control", "circuit"),
        ("batch:reference", "batch", "reference", ""),
        ("verify_batch:control:my:own", "verify_batch", "control", "my:own"),
        ("invariance:variant:circuit", "invariance", "variant", "circuit"),
    ],
)
def test_a_name_and_its_parts(text, mode, kind, of):
    assert StageName.parse(text) == StageName(mode, kind, of)
    assert StageName(mode, kind, of).text == text


@pytest.mark.parametrize("text", ["load", "compare", "localize", "oracle", "memory", "batch:load"])
def test_a_stage_that_runs_no_forward_has_no_such_name(text):
    assert StageName.parse(text) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_variant_may_be_called_like_a_mode(mode):
    name = StageName("single", "variant", mode)
    assert StageName.parse(name.text) == name
