"""A rule judged alone: the shipped ones hold, a user's right one passes, a wrong one is refuted."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from metpipe.circuit import read_rules
from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.engine.microtest import AWKWARD, KINDS
from metpipe.errors import ConfigError, Exit
from metpipe.report.rule_section import RuleSection
from metpipe.resources import kernels_dir
from metpipe.stages.rule import judge_rule
from metpipe.stages.write_report import Results, verdict_of
from tests.runs import metpipe, report_of

DATA = Path(__file__).parent / "data"
RULE = ("pipeline=rule", "device=cpu")
OK, WRONG = DATA / "overlay_ok", DATA / "overlay_wrong"
SHIPPED = read_rules(kernels_dir() / "cpu")

Edit = tuple[str, str, str]
"""file, text, its replacement"""


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """The values are small: torch's second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def sets() -> KernelSets:
    return open_kernel_sets("cpu", None)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A copy of the right folder with some text replaced."""

    def make(*edits: Edit) -> Path:
        folder = tmp_path / "kernels"
        shutil.copytree(OK, folder)
        for name, old, new in edits:
            text = (folder / name).read_text()
            assert old in text
            (folder / name).write_text(text.replace(old, new))
        return folder

    return make


@pytest.fixture
def two_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one circuit would show a fault, the other ones only take time."""
    few = {name: AWKWARD[name] for name in ("plain", "all biased, tied")}
    monkeypatch.setattr("metpipe.stages.rule.AWKWARD", few)


def judged(folder: Path) -> RuleSection:
    return judge_rule(open_kernel_sets("cpu", str(folder)), "product_add")


def verdict(section: RuleSection) -> Exit:
    """What a run says that did nothing but judge this rule."""
    results = Results({"rule": {"rule": section.model_dump(mode="json")}}, {})
    return verdict_of(None, results)[0]


@pytest.mark.parametrize("rule_id", sorted(SHIPPED.of_class("bit_identical")))
def test_a_shipped_rule_gives_the_bits_of_the_ops_it_replaces(sets, rule_id):
    section = judge_rule(sets, rule_id)
    assert section.passed, section.sentence
    assert {case.name for case in section.cases} >= {"normal", "cancelling", "NaN and inf"}
    assert {1, 2, 3, 5, 17} <= {case.rows for case in section.cases}
    assert sum(case.unequal_bytes for case in section.cases) == 0
    assert section.fused_launches < section.chain_launches
    assert section.chain_ms_median > 0
    assert section.fused_ms_median > 0


@pytest.mark.parametrize("rule_id", sorted(SHIPPED.of_class("reference")))
def test_a_shipped_definition_is_exercised_and_repeats_itself(sets, monkeypatch, rule_id):
    """Two kinds of values: what it is compared with is itself."""
    hybrids = {name: AWKWARD[name] for name in ("recurrent", "experts")}
    monkeypatch.setattr("metpipe.stages.rule.AWKWARD", hybrids)
    few = {kind: KINDS[kind] for kind in ("normal", "NaN and inf")}
    monkeypatch.setattr("metpipe.stages.rule.KINDS", few)
    section = judge_rule(sets, rule_id)
    assert section.passed, section.sentence
    assert section.unexercised == ()
    assert {1, 2, 3, 5, 17} <= {case.rows for case in section.cases}


def test_every_shipped_rule_is_judged():
    judged = SHIPPED.of_class("bit_identical") | SHIPPED.of_class("reference")
    assert judged == set(SHIPPED.rules)


def test_a_users_rule_whose_chain_no_circuit_has_says_where_it_was_looked_for(edited):
    folder = edited(("FUSIONS.toml", 'op = "residual_add"', 'op = "argmax"'))
    with pytest.raises(ConfigError, match=r"it applies nowhere.*argmax.*'?recurrent'?"):
        judged(folder)


def test_a_reference_rule_is_called_the_definition(sets):
    section = judge_rule(sets, "residual_add")
    assert section.passed
    assert "its kernel defines the bits and is compared with itself" in section.sentence
    assert section.fused_launches == section.chain_launches == 1


@pytest.mark.usefixtures("two_circuits")
def test_the_runs_own_model_is_among_the_circuits(sets):
    config = {
        "model_type": "llama",
        "hidden_size": 40,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    section = judge_rule(sets, "add_rms_norm", model_config=config)
    assert section.passed
    assert "3 circuits" in section.sentence


def test_a_hybrid_inside_a_model_that_sees_is_among_the_circuits(sets, monkeypatch):
    few = {name: AWKWARD[name] for name in ("experts",)}
    monkeypatch.setattr("metpipe.stages.rule.AWKWARD", few)
    text = {**AWKWARD["recurrent"], "hidden_size": 48, "tie_word_embeddings": False}
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 1}}
    section = judge_rule(sets, "recurrence_norm", model_config=config)
    assert section.passed, section.sentence
    assert "2 circuits" in section.sentence


def test_a_users_right_rule_passes():
    section = judged(OK)
    assert section.passed, section.sentence
    assert section.kernels == ("overlay/product_add.product_add",)
    assert (section.chain_launches, section.fused_launches) == (2, 1)


def test_the_wrong_folder_is_the_right_one_with_its_rounding_point_moved():
    right, wrong = ((folder / "product_add.py").read_text() for folder in (OK, WRONG))
    assert wrong == right.replace("= round_bf16(product)", "= product").replace(
        "from metpipe_kernels.cpu.simd import round_bf16\n", ""
    )
    for path in OK.glob("*.toml"):
        assert path.read_text() == (WRONG / path.name).read_text()


def test_the_documented_example_is_the_tested_folder():
    text = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text()
    for path in OK.iterdir():
        if path.is_file():
            assert f"`{path.name}`\n\n```" in text
            assert f"\n{path.read_text().rstrip()}\n```\n" in text


def test_the_moved_rounding_is_refuted_with_its_case_and_how_far_it_is_off():
    section = judged(WRONG)
    assert not section.passed
    assert "refuted" in section.sentence
    assert "values 'normal', circuit 'plain', mode decode, 1 row: l0.attn.y" in section.sentence
    differing = {case.name for case in section.cases if case.unequal_bytes}
    assert {"normal", "cancelling", "huge and denormal", "mixed exponents"} <= differing
    for case in section.cases:
        assert (case.severity is not None) == (case.unequal_bytes > 0)
    assert max(case.severity.max_abs for case in section.cases if case.severity) > 0


HALVES = """
from metpipe_kernels.cpu import dot as builtin
from metpipe_kernels.cpu.jit import device
from metpipe_kernels.cpu.scalar import add1

TILE = builtin.TILE
whole = builtin.dot


@device
def dot(w, x, k):
    half = k // 2
    return add1(whole(w, x, half), whole(w + 2 * half, x + 2 * half, k - half))


@device
def dot_1x4(w, x, k):
    return dot(w, x, k), dot(w + 2 * k, x, k), dot(w + 4 * k, x, k), dot(w + 6 * k, x, k)
"""


@pytest.mark.usefixtures("two_circuits")
def test_another_sum_tree_is_refuted_by_the_cancelling_rows(edited):
    folder = edited(("product_add.py", "metpipe_kernels.cpu.dot", ".halves"))
    (folder / "halves.py").write_text(HALVES)
    section = judged(folder)
    assert not section.passed
    unequal = Counter()
    for case in section.cases:
        unequal[case.name] += case.unequal_bytes
    assert unequal["cancelling"] > 20 * unequal["normal"]


DIFFERS: Edit = (
    "FUSIONS.toml",
    """numerics = "bit_identical"
microtest = "metpipe pipeline=rule rule=product_add kernels=FOLDER"
""",
    """numerics = "differs"
lever = "wide_residual"
""",
)


@pytest.mark.usefixtures("two_circuits")
def test_a_rule_that_says_it_differs_is_reported_and_not_failed(edited):
    moved = ("product_add.py", "stored = round_bf16(product)", "stored = product")
    section = judged(edited(moved, DIFFERS))
    assert section.passed
    assert "reported and not judged" in section.sentence
    assert section.numerics == "differs(wide_residual)"
    assert sum(case.unequal_bytes for case in section.cases) > 0


@pytest.mark.usefixtures("two_circuits")
def test_a_hole_is_refuted_even_where_the_rule_may_differ(edited):
    hole = ("product_add.py", "range(whole, high)", "range(whole, high - 1)")
    section = judged(edited(hole, DIFFERS))
    assert not section.passed
    assert "unwritten" in section.sentence


@pytest.mark.usefixtures("two_circuits")
def test_a_row_written_behind_the_output_is_seen(edited):
    section = judged(edited(("product_add.py", "in range(rows)", "in range(rows + 1)")))
    assert not section.passed
    assert "bytes around l0.attn.y" in section.sentence


def test_a_rule_whose_outputs_are_never_numbers_is_inconclusive(edited, monkeypatch):
    monkeypatch.setattr("metpipe.stages.rule.KINDS", {"zero rows": KINDS["zero rows"]})
    section = judged(edited(("FUSIONS.toml", "rows = [1, 8192]", "rows = [1, 1]")))
    assert not section.passed
    assert section.unexercised == ("output 0 of element 1 (residual_add)",)
    assert "nothing is shown" in section.sentence
    assert verdict(section) is Exit.INCONCLUSIVE
    assert verdict(judged(WRONG)) is Exit.FAIL


ADD_RULE = """
schema = 1

[[rule]]
id = "residual_add"
pattern = [{ op = "residual_add" }]
kernels = [{ module = "add", func = "add" }]
rows = [1, 64]
modes = ["decode"]
numerics = "reference"
priority = 10
cite = "the add of the built-in set"

[rule.args]
stream = "0.in.0"
delta = "0.in.1"
y = "0.out.0"
"""
ADD_KERNEL = """
def add(*, stream, delta, y):
    return lambda: y.copy_(stream + delta + 0.0)
"""


@pytest.mark.usefixtures("two_circuits")
def test_a_users_reference_rule_is_a_claim(edited):
    folder = edited()
    (folder / "FUSIONS.toml").write_text(ADD_RULE)
    (folder / "add.py").write_text(ADD_KERNEL)
    section = judge_rule(open_kernel_sets("cpu", str(folder)), "residual_add")
    assert not section.passed  # it turns -0.0 into +0.0
    assert "its class reference counts as a claim" in section.sentence
    assert any(case.unequal_bytes for case in section.cases if case.name == "negative zero")


def test_an_argument_that_a_node_lacks_is_the_users_error(edited):
    folder = edited(("FUSIONS.toml", 'weight = "0.weight"', 'weight = "1.weight"'))
    with pytest.raises(ConfigError, match=r"rule product_add: .*1.weight.* binds no weight"):
        judged(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("FUSIONS.toml", 'func = "product_add"', 'func = "sum"'), r"no kernel 'product_add.sum'"),
        (("FUSIONS.toml", "priority =", "colour = 3\npriority ="), r"rule product_add: .*'colour'"),
    ],
    ids=["missing kernel", "unknown key"],
)
def test_a_broken_rule_file_is_the_users_error(edited, edit, message):
    with pytest.raises(ConfigError, match=message) as caught:
        judged(edited(edit))
    assert "\n" not in str(caught.value)


def test_the_command_passes_a_right_folder_and_says_so(tmp_path):
    ran = metpipe(*RULE, "rule=product_add", f"kernels={OK}", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == "PASS"
    assert report["rule"]["passed"]
    assert report["diff"] is None


def test_the_command_fails_a_wrong_folder_and_names_the_case(tmp_path):
    ran = metpipe(*RULE, "rule=product_add", f"kernels={WRONG}", cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == "FAIL"
    assert "values 'normal'" in report["reasons"][0]


def test_an_unknown_rule_is_one_line_and_status_2(tmp_path):
    ran = metpipe(*RULE, "rule=product_ad", f"kernels={OK}", cwd=tmp_path)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "did you mean product_add" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("folder", "status"), [(OK, 0), (WRONG, 1)], ids=["right", "wrong"])
def test_a_whole_diff_judges_the_users_kernels(tmp_path, folder, status):
    ran = metpipe(
        "pipeline=diff",
        "variant=circuit",
        f"kernels={folder}",
        "prompts=1",
        "steps=3",
        cwd=tmp_path,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == ("PASS", "FAIL")[status]
    (variant,) = [row for row in report["diff"]["variants"] if row["name"] == "circuit"]
    assert "product_add" in variant["rules"]
    assert set(report["provenance"]["kernel_sets"]) == {"builtin", "overlay"}
