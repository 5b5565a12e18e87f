"""Row tables of a batched verify, and rules that launch per run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Circuit, Kernel, RowTable, Uncovered, parse_fusions
from metpipe.circuit.rules import RunSelector
from metpipe.errors import ConfigError

from .toy import Toy, plan, rule


def test_runs_are_adjacent_sequences_of_equal_rows() -> None:
    table = RowTable.of([4, 4, 4, 2, 2], [0, 1, 2, 3, 5])
    assert table.text == "4x3 2x2!"
    assert table.rows == 16
    assert [run.contiguous for run in table.runs] == [True, False]


def test_one_sequence_is_never_contiguous() -> None:
    table = RowTable.of([3], [7])
    assert table.text == "3x1"
    assert not table.runs[0].contiguous


@pytest.mark.parametrize("text", ["4x3 2x2!", "3x1", "uncarried: 2x8 4x1"])
def test_a_table_is_read_back(text: str) -> None:
    assert RowTable.parse(text).text == text


@pytest.mark.parametrize("text", ["", "4*3", "0x3", "4x3,2x2"])
def test_no_table(text: str) -> None:
    with pytest.raises(ConfigError, match="no row table"):
        RowTable.parse(text)


@pytest.mark.parametrize(
    ("how", "times"), [("once", 1), ("per_seq", 3), ("per_row", 12), ("per_seq_row_but_last", 9)]
)
def test_how_often_a_kernel_runs_in_a_run(how: str, times: int) -> None:
    assert RowTable.parse("4x3").runs[0].times(how) == times


def circuit() -> Circuit:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    return toy.add("recur", "gdn_recurrence", "x x x", "y").output("y").circuit()


def selector(contiguous: bool | None, *times: str) -> RunSelector:
    kernels = tuple((Kernel("gdn", f"step{index}"), how) for index, how in enumerate(times))
    return RunSelector((2, 4), (1, 64), contiguous, None, kernels, copies="once")


EMBED = rule("embed", ["embed"], modes=["verify_batch"])


def recur(*selectors: RunSelector):
    made = rule("recur", ["gdn_recurrence"], modes=["verify_batch"], repeat="per_run")
    return replace(made, kernels=(), runs=selectors)


def test_each_run_takes_its_first_selector() -> None:
    table = RowTable.parse("4x3 2x2!")
    made = plan(
        circuit(), EMBED, recur(selector(True, "once"), selector(None, "per_seq", "per_row")),
        mode="verify_batch", rows=16, table=table,
    )  # fmt: skip
    assert made.launches(16) == 1 + 1 + (2 + 4)
    assert made.copies(16) == 2


def test_a_run_without_a_selector_leaves_the_node_uncovered() -> None:
    with pytest.raises(Uncovered, match="no selector covers every run of 4x3 2x2!"):
        plan(circuit(), EMBED, recur(selector(True, "once")),
             mode="verify_batch", rows=16, table=RowTable.parse("4x3 2x2!"))  # fmt: skip
    with pytest.raises(Uncovered, match="there is no row table"):
        plan(circuit(), EMBED, recur(selector(None, "once")), mode="verify_batch", rows=16)


def test_the_table_must_have_the_rows_of_the_plan() -> None:
    with pytest.raises(ConfigError, match="has 16 rows, not 15"):
        plan(circuit(), EMBED, mode="verify_batch", rows=15, table=RowTable.parse("4x3 2x2!"))


def test_the_digest_moves_with_the_table_and_the_launches() -> None:
    digests = {
        plan(circuit(), EMBED, recur(selector(None, how)),
             mode="verify_batch", rows=8, table=RowTable.parse(table)).digest()
        for how in ("once", "per_seq")
        for table in ("4x2", "4x2!", "2x4")
    }  # fmt: skip
    assert len(digests) == 6


def test_selectors_are_read_from_a_file() -> None:
    text = """
    schema = 1
    [[rule]]
    id = "recur"
    pattern = [{ op = "gdn_recurrence" }]
    kernels = []
    repeat = "per_run"
    rows = [1, 512]
    modes = ["verify_batch"]
    numerics = "reference"
    priority = 10
    cite = "here"
    [[rule.run]]
    k = [2, 4]
    n = [1, 64]
    contiguous = true
    launches = [{ module = "gdn", func = "step", times = "per_seq" }]
    copies = "per_seq"
    """
    found = parse_fusions(text, "f.toml").rules["recur"]
    assert found.kernel_names == {"gdn.step"}
    assert (found.runs[0].k, found.runs[0].contiguous, found.runs[0].carried) == (
        (2, 4),
        True,
        None,
    )
