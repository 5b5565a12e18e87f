"""A plan's digest moves exactly when what runs moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Circuit, Element, Kernel, Rule, plans_digest, rules_digest
from metpipe.circuit.digest import plan_text

from .toy import DIFFERS, IDENTICAL, Toy, plan, rule


def circuit() -> Circuit:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("norm", "rms_norm", "x", "xn", weight="bf16", params={"eps": "1e-06"})
    toy.add("up", "linear", "xn", "u", role="gate_up", weight="bf16", dim=16)
    return toy.add("act", "silu_mul", "u", "a").output("a").circuit()


ONES = [rule(op, [op]) for op in ("embed", "rms_norm", "linear", "silu_mul")]
FUSED = rule("fused", ["linear", "silu_mul"], numerics=IDENTICAL, priority=100, rows=(1, 8))


def digest(fused: Rule = FUSED, *more: Rule, rows: int = 1, **situation: object) -> str:
    return plan(circuit(), *ONES, fused, *more, rows=rows, **situation).digest()


def test_a_digest_is_64_lower_hex_digits() -> None:
    assert len(digest()) == 64
    assert set(digest()) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "changed",
    [
        replace(FUSED, emitter="another"),
        replace(FUSED, repeat="per_row"),
        replace(FUSED, copies="once"),
        replace(FUSED, kernels=(Kernel("k", "other"),)),
        replace(FUSED, rows=(2, 8)),
        replace(FUSED, modes=frozenset({"verify"})),
        replace(FUSED, numerics=replace(IDENTICAL, microtest="another")),
        replace(FUSED, pattern=(Element("linear", stored=True), Element("silu_mul"))),
    ],
    ids=["emitter", "repeat", "copies", "func", "rows", "modes", "microtest", "stored"],
)
def test_it_moves_with_what_runs(changed: Rule) -> None:
    assert digest(changed) != digest()


def test_it_moves_with_the_arguments_of_a_kernel() -> None:
    made = [
        digest(replace(FUSED, kernels=(Kernel("k", "fused", args),)))
        for args in ({"x": "0.in.0", "y": "1.out.0"}, {"x2": "0.in.0", "y": "1.out.0"})
    ]
    assert made[0] != made[1]


def test_it_moves_with_the_class_of_the_rule() -> None:
    lossy = replace(FUSED, numerics=DIFFERS)
    assert digest(lossy, levers=frozenset({"fast"})) != digest()


def test_it_moves_with_the_row_count() -> None:
    assert digest(rows=2) != digest(rows=1)


def test_it_moves_with_a_param_of_a_node() -> None:
    other = circuit()
    nodes = tuple(
        replace(node, params={"eps": "1e-05"}) if node.local == "norm" else node
        for node in other.nodes
    )
    assert plan(replace(other, nodes=nodes), *ONES, FUSED).digest() != digest()


@pytest.mark.parametrize(
    "changed",
    [
        replace(FUSED, priority=60),
        replace(FUSED, rows=(1, 9999)),
        replace(FUSED, modes=frozenset({"decode"})),
        replace(FUSED, cite="elsewhere"),
        replace(FUSED, id="another_id"),
        replace(FUSED, source="another.toml"),
    ],
    ids=["priority", "rows", "modes", "cite", "id", "source"],
)
def test_it_stays_while_the_same_thing_runs(changed: Rule) -> None:
    assert digest(changed) == digest()


def test_unused_rules_settings_and_levers_do_not_move_it() -> None:
    unused = rule("unused", ["relu2"], when={"tier": "exact"})
    assert digest(FUSED, unused, settings={"tier": "canonical"}) == digest()
    assert digest(FUSED, settings={"tier": "exact"}, levers=frozenset({"fast"})) == digest()


def test_the_text_has_a_line_for_every_group_node_and_edge() -> None:
    lines = plan_text(plan(circuit(), *ONES, FUSED)).splitlines()
    assert lines[:2] == ["metpipe-plan 1", "plan toy decode 1"]
    assert [line.split()[0] for line in lines[2:]] == ["group"] * 3 + ["node"] * 4 + ["edge"] * 4
    assert lines[-2:] == ["edge u bf16 n 16=16 F2", "edge a bf16 n 8=8 M"]


def test_a_rule_file_digest_moves_with_a_comment() -> None:
    assert rules_digest("schema = 1\n") != rules_digest("# more\nschema = 1\n")


def test_the_digest_of_several_plans_depends_on_their_order() -> None:
    one, two = digest(rows=1), digest(rows=2)
    assert plans_digest([one, two]) != plans_digest([two, one])
