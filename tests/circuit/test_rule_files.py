"""FUSIONS.toml, a user's own among them: strict reading, messages that name file and rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import (
    BadArgument,
    Kernel,
    MissingKernel,
    Numerics,
    RuleFileError,
    Situation,
    parse_fusions,
    read_rules,
    row_buckets,
)
from metpipe.circuit.buckets import Bucket
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

from .toy import IDENTICAL, Toy, plan, rule, rule_set

RULE = """
schema = 1
[[rule]]
id = "qkv"
pattern = [
  { op = "linear", role = "q", keep = true },
  { op = "linear", roles = ["k", "v"], sibling = true },
]
kernels = [{ module = "linear", func = "qkv" }]
rows = [1, 16]
modes = ["decode", "prefill"]
numerics = "bit_identical"
microtest = "tests/test_qkv.py"
priority = 100
cite = "three linears of one input"
requires = ["amx"]
when = { row_tiers = "canonical" }

[rule.args]
x = "0.in.0"
weights = ["0.weight", "1.weight"]
eps = "0.param.eps"
"""


def test_a_rule_is_read_whole() -> None:
    found = parse_fusions(RULE, "mine/FUSIONS.toml").rules["qkv"]
    assert [element.text for element in found.pattern] == ["linear:q", "linear:k|v"]
    assert found.pattern[0].keep
    assert found.pattern[1].sibling
    args = {"x": "0.in.0", "weights": ("0.weight", "1.weight"), "eps": "0.param.eps"}
    assert found.kernels == (Kernel("linear", "qkv", args),)
    assert (found.rows, found.modes) == ((1, 16), {"decode", "prefill"})
    assert found.numerics == Numerics("bit_identical", microtest="tests/test_qkv.py")
    assert (found.priority, found.repeat, found.copies) == (100, "once", None)
    assert (found.requires, found.when) == ({"amx"}, {"row_tiers": "canonical"})


def changed(old: str, new: str) -> str:
    assert old in RULE, old
    return RULE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("schema = 1", "schema = 2"), "reads schema 1"),
        (RULE + "[rules]", "unknown key 'rules'; the keys known here are rule, runtime, schema"),
        (
            changed("priority = 100", 'priority = 100\ncolour = "red"'),
            "rule qkv: unknown key 'colo",
        ),
        (changed("priority = 100", ""), "rule qkv: the key 'priority' is missing"),
        (changed("priority = 100", 'priority = "high"'), "priority must be an integer"),
        (changed('op = "linear", role = "q"', 'op = "linaer"'), "'linaer' is not one of"),
        (changed('role = "q"', 'role = "queue"'), "no role 'queue'"),
        (changed('op = "linear", role = "q"', 'op = "rope", role = "q"'), "only linear has roles"),
        (changed("keep = true", "keeps = true"), "pattern element #0: unknown key 'keeps'"),
        (changed("keep = true", 'weight = "fp4"'), "no format is spelled 'fp4'"),
        (changed("keep = true", 'layer_kind = "full"'), "'full' is not one of"),
        (changed("[1, 16]", "[0, 16]"), "1 <= lowest <= highest"),
        (changed("[1, 16]", "[16, 1]"), "1 <= lowest <= highest"),
        (changed("[1, 16]", "[1, true]"), r"rows must be \[lowest, highest\]"),
        (changed('["decode", "prefill"]', "[]"), "at least one mode"),
        (changed('"prefill"', '"prefil"'), "no mode is named 'prefil'"),
        (changed('"bit_identical"', '"same"'), "'same' is not one of"),
        (changed('microtest = "tests/test_qkv.py"', ""), "'bit_identical' needs a microtest"),
        (changed("microtest", "lever"), "needs a microtest"),
        (
            changed('numerics = "bit_identical"', 'numerics = "differs"\nlever = "x"'),
            "no microtest",
        ),
        (changed('cite = "three linears of one input"', 'cite = " "'), "cite must not be empty"),
        (changed("priority = 100", 'priority = 100\nrepeat = "twice"'), "repeat = 'twice'"),
        (changed("priority = 100", 'priority = 100\nrepeat = "chunk0"'), "repeat = 'chunk0'"),
        (changed("priority = 100", 'priority = 100\nrepeat = "per_run"'), "go together"),
        (changed('x = "0.in.0"', 'x = "2.in.0"'), "rule qkv, args: x: '2.in.0' names element 2"),
        (changed('x = "0.in.0"', 'x = "in.0"'), "args: x: 'in.0' is no source"),
        (changed('x = "0.in.0"', 'x = "0.in.first"'), "is no source"),
        (changed('x = "0.in.0"', 'x = "step.place"'), "a step has no 'place'"),
        (changed('x = "0.in.0"', "x = 3"), "must be a source or a list of sources"),
        (changed('"1.weight"]', '"1.wieght"]'), "weights: '1.wieght' is no source"),
        (changed("func = ", "function = "), "kernel #0: .*'func'|kernel #0: unknown"),
        (RULE + RULE.replace("schema = 1", ""), "another rule of this file has that id"),
        (RULE + "[", "not valid TOML"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(RuleFileError, match=message) as caught:
        parse_fusions(text, "mine/FUSIONS.toml")
    assert str(caught.value).startswith("mine/FUSIONS.toml")


def test_a_reference_rule_is_one_op() -> None:
    text = changed(
        'numerics = "bit_identical"\nmicrotest = "tests/test_qkv.py"', 'numerics = "reference"'
    )
    with pytest.raises(RuleFileError, match="rule qkv: a reference rule is exactly one op"):
        parse_fusions(text, "mine/FUSIONS.toml")


def test_args_belong_to_the_rule_or_to_its_kernel() -> None:
    both = changed('func = "qkv" }', 'func = "qkv", args = { y = "0.out.0" } }')
    with pytest.raises(RuleFileError, match="keep one"):
        parse_fusions(both, "mine")
    two = changed('[{ module = "linear", func = "qkv" }]',
        '[{ module = "linear", func = "qkv" }, { module = "linear", func = "v" }]')  # fmt: skip
    with pytest.raises(RuleFileError, match="put them in each kernel"):
        parse_fusions(two, "mine")


def test_each_kernel_of_several_has_its_own_args() -> None:
    head, _, _ = RULE.partition("[rule.args]")
    text = head.replace(
        '[{ module = "linear", func = "qkv" }]',
        '[{ module = "a", func = "f", args = { x = "0.in.0" } }, { module = "b", func = "g" }]',
    )
    kernels = parse_fusions(text, "mine").rules["qkv"].kernels
    assert [(kernel.name, dict(kernel.args)) for kernel in kernels] == [
        ("a.f", {"x": "0.in.0"}),
        ("b.g", {}),
    ]


@pytest.mark.parametrize(
    "source",
    ["0.in.0", "1.out.1", "0.weight", "0.bias", "1.param.eps", "0.state.attn.k", "0.tensor.A_log",
     "0.rope.cos", "1.rope.sin", "dim.head_dim", "step.token_ids", "step.positions", "step.slots",
     "step.block_table", "step.block_size", "step.snapshots", "0.steps.gdn.h", "1.steps.conv",
     "workspace.scores"],
)  # fmt: skip
def test_sources(source: str) -> None:
    text = changed('x = "0.in.0"', f'x = "{source}"')
    assert parse_fusions(text, "mine").rules["qkv"].args["x"] == source


def test_an_overlay_adds_and_shadows_by_id() -> None:
    base = rule_set(rule("norm", ["rms_norm"]), rule("act", ["silu_mul"]))
    mine = rule_set(rule("norm", ["rms_norm"], "mine.norm"), rule("new", ["relu2"]))
    both = base.overlay(mine)
    assert set(both.rules) == {"norm", "act", "new"}
    assert both.rules["norm"].kernels[0].name == "mine.norm"
    assert base.rules["norm"].kernels[0].name == "k.norm", "the base stays as it is"


def test_kernels_that_do_not_exist_are_named() -> None:
    rules = rule_set(rule("norm", ["rms_norm"]))
    rules.require_kernels({"k.norm"})
    with pytest.raises(MissingKernel, match=r"toy\.toml, rule norm: there is no kernel 'k\.norm'"):
        rules.require_kernels({"k.nrom"})


def test_classes_of_rules() -> None:
    rules = rule_set(rule("a", ["rms_norm"]), rule("b", ["rms_norm", "linear"], numerics=IDENTICAL))
    assert rules.of_class("reference") == {"a"}
    assert rules.of_class("bit_identical", "differs") == {"b"}


RUNTIME = """
schema = 1
[[runtime]]
id = "fragmented"
when = "state slots are not consecutive"
modes = ["multi_seq"]
rows = [2, 128]
plans_as = { batched = "off" }
why = "one launch with a stride needs consecutive slots"
cite = "the pool's free list"
"""


def test_a_runtime_condition_plans_another_arm() -> None:
    rules = parse_fusions(RUNTIME, "f.toml")
    situation = Situation("multi_seq", 8, frozenset(), settings={"batched": "on"})
    assert [arm.settings["batched"] for arm in situation.arms(rules)] == ["on", "off"]
    alone = Situation("decode", 1, frozenset(), settings={"batched": "on"})
    assert alone.arms(rules) == (alone,)
    with pytest.raises(RuleFileError, match="plans_as must state"):
        parse_fusions(RUNTIME.replace('{ batched = "off" }', "{}"), "f.toml")


def test_rows_are_split_wherever_a_rule_of_the_mode_begins_or_ends() -> None:
    rules = rule_set(
        rule("a", ["rms_norm"], rows=(1, 16)),
        rule("b", ["rms_norm"], rows=(17, 4096)),
        rule("c", ["linear"], rows=(33, 64)),
        rule("other", ["linear"], rows=(5, 6), modes=["verify"]),
    )
    found = row_buckets(rules, "prefill", 100)
    assert found == (Bucket(1, 16), Bucket(17, 32), Bucket(33, 64), Bucket(65, 100))
    assert row_buckets(rules, "prefill", 10) == (Bucket(1, 10),)


def test_one_plan_is_exact_inside_a_bucket() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("norm", "rms_norm", "x", "y", weight="bf16").output("y").circuit()
    rules = [
        rule("embed", ["embed"]),
        rule("few", ["rms_norm"], rows=(1, 16)),
        rule("many", ["rms_norm"], rows=(17, 4096), repeat="chunk64"),
    ]
    for bucket in row_buckets(rule_set(*rules), "multi_seq", 300):
        top = plan(circuit, *rules, mode="multi_seq", rows=bucket.high)
        for rows in (bucket.low, bucket.high):
            exact = plan(circuit, *rules, mode="multi_seq", rows=rows)
            assert exact.groups == top.groups
            assert exact.launches(rows) == top.launches(rows)


def test_the_shipped_rules_are_read_and_promise_a_microtest_for_each_fusion() -> None:
    rules = read_rules(kernels_dir() / "cpu")
    for entry in rules.rules.values():
        fused = len(entry.pattern) > 1
        assert fused == (entry.numerics.kind != "reference"), entry.id


def test_a_missing_rule_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere/FUSIONS\.toml cannot be read"):
        read_rules(kernels_dir() / "nowhere")


def bound(**args: object) -> None:
    """Plan norm -> linear(+bias), fused by one kernel with these arguments."""
    toy = Toy().state("kv").add("embed", "embed", "", "x", weight="bf16")
    toy.add("norm", "rms_norm", "x", "xn", weight="bf16", params={"eps": "1e-6"})
    toy.add("o", "linear", "xn", "y", role="o", weight="bf16", state={"kv": "read"})
    both = rule("both", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100)
    both = replace(both, kernels=(Kernel("k", "both", {"y": "1.out.0", **args}),))
    plan(toy.output("y").circuit(), rule("embed", ["embed"]), both)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("0.in.1", r"b0\.norm \(rms_norm\) reads 1 edges"),
        ("1.out.1", r"b0\.o \(linear\) writes 1 edges"),
        ("0.out.0", "the edge xn lives inside the group"),
        ("1.in.0", "the edge xn lives inside the group"),
        ("0.param.theta", "no such param; it has eps"),
        ("0.state.kv", "no such state; it has none"),
        ("1.state.attn.k", "no such state; it has kv"),
        ("0.steps.kv", "no such state; it has none"),
        ("1.steps.gdn.h", "no such state; it has kv"),
        ("1.steps.kv", "only recurrent states are kept row by row"),
        ("0.tensor.A_log", "no such tensor; it has none"),
        ("0.rope.cos", "no rotary table"),
        ("dim.width", "no such dim"),
    ],
)
def test_an_argument_that_the_nodes_cannot_give_is_named(source: str, message: str) -> None:
    bound(x="0.in.0", w="1.weight", eps="0.param.eps", kv="1.state.kv", d="dim.hidden")
    with pytest.raises(
        BadArgument, match=rf"toy\.toml, rule both: kernel k\.both, x = .*{message}"
    ):
        bound(x=source)


def test_an_output_that_no_argument_receives_is_named() -> None:
    with pytest.raises(BadArgument, match=r"no argument is 1\.out\.0, so nothing writes y"):
        bound(y="0.in.0")


def test_a_rule_without_a_place_for_the_bias_does_not_take_a_biased_node() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    toy.add("o", "linear", "x", "y", role="o", weight="bf16", has_bias=True)
    circuit = toy.output("y").circuit()
    args = {"x": "0.in.0", "weight": "0.weight", "y": "0.out.0"}
    bare = replace(rule("bare", ["linear"], priority=99), kernels=(Kernel("k", "bare", args),))
    full = replace(
        rule("full", ["linear"]), kernels=(Kernel("k", "full", {**args, "bias": "0.bias"}),)
    )
    assert plan(circuit, rule("embed", ["embed"]), bare, full).rules_used() == {"embed", "full"}
