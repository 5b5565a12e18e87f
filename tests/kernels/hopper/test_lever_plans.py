"""Where the levers of the set's rules take effect, planned without a GPU."""

from __future__ import annotations

from collections import Counter

import pytest

from metpipe.circuit import Plan, RuleSet, Select, Situation, fuse, parse_hardware
from metpipe.engine.microtest import AWKWARD
from metpipe.engine.opening import circuit_of
from tests.kernels.hopper.test_tables import FOLDER, RULES

HARDWARE = parse_hardware((FOLDER / "HARDWARE.toml").read_text(), "HARDWARE.toml")
LAYERS = {"num_hidden_layers": 4, "layer_types": [*["linear_attention"] * 3, "full_attention"]}
CIRCUIT = circuit_of({**AWKWARD["recurrent"], **LAYERS}, "recurrent")


def plan_of(mode: str, rows: int, *levers: str) -> Plan:
    situation = Situation(
        mode=mode,
        rows=rows,
        kernels=frozenset(name for rule in RULES.values() for name in rule.kernel_names),
        capabilities=HARDWARE.capabilities,
        settings=HARDWARE.settings,
        levers=frozenset(levers),
        select=Select.all(),
    )
    return fuse(CIRCUIT, RuleSet("FUSIONS.toml", RULES), situation)


def used(plan: Plan) -> Counter[str]:
    return Counter(group.rule.id for group in plan.groups)


@pytest.mark.parametrize("rows", (1, 63, 64, 1000, 8192))
def test_with_its_lever_a_prefill_of_any_length_is_chunked(rows):
    pulled, plain = (
        used(plan_of("prefill", rows, "chunked_prefill")),
        used(plan_of("prefill", rows)),
    )
    assert plain["recurrence_norm"] == 3
    assert pulled["gdn_chunked"] == pulled["gated_rms_norm"] == 3
    assert pulled - plain == Counter(gdn_chunked=3, gated_rms_norm=3)
    assert plain - pulled == Counter(recurrence_norm=3)


@pytest.mark.parametrize(
    ("mode", "rows"), [("decode", 1), ("multi_seq", 4), ("verify", 3), ("verify_batch", 6)]
)
def test_the_other_modes_are_as_they_were(mode, rows):
    assert used(plan_of(mode, rows, "chunked_prefill")) == used(plan_of(mode, rows))


def test_another_lever_does_not_chunk():
    assert used(plan_of("prefill", 64, "by_rows")) == used(plan_of("prefill", 64))
