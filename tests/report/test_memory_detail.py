"""What lies behind a memory plan's bill, and a boot held against it, as tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console

from metpipe.report import boot_tables, memory_detail
from metpipe.report.boot_section import BootSection
from metpipe.report.memory_section import memory_section

from . import examples

MIB = 1 << 20


def node(name: str, layer: int | None, **sizes: int) -> dict[str, Any]:
    empty = {"stored": 0, "derived": [], "activations": 0, "workspace": 0, "state": 0}
    return {"node": name, "op": "linear", "layer": layer, **empty, **sizes}


def state(local: str, section: str, size: int) -> dict[str, Any]:
    return {
        "local": local, "kind": "paged_kv", "holding": "blocks", "lifetime": "model",
        "dtype": "bf16", "section": section, "states": ["a", "b"], "units": 3, "unit_bytes": 1,
        "bytes": size,
    }  # fmt: skip


def section(**changes: Any):
    record = examples.memory_record() | changes
    return memory_section(record, examples.WORKLOAD)


def with_facts(**facts: str) -> dict[str, Any]:
    header: Any = examples.memory_record()["header"]
    return header | {"facts": facts}


def text(parts) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


COPY = {"rule": "twin", "bytes": 2 * MIB, "leaked": False}
NODES = [
    node("embed.embed", None, stored=MIB),
    node("l0.gdn.qkvz", 0, stored=MIB, derived=[COPY], workspace=3 * MIB, state=MIB),
    node("l1.gdn.qkvz", 1, stored=MIB, derived=[COPY, COPY], workspace=2 * MIB),
    node("l0.gdn.add", 0),
]


def test_equal_nodes_of_all_layers_are_one_row_and_share_a_workspace():
    rows = memory_detail.folded(section(nodes=NODES).nodes, per_node=False)
    assert [(row.key, row.nodes) for row in rows] == [
        ("embed.embed", 1), ("gdn.qkvz", 2), ("gdn.add", 1)
    ]  # fmt: skip
    assert rows[1].sizes == (2 * MIB, 6 * MIB, 0, 3 * MIB, MIB)


def test_a_row_per_node_on_demand_and_none_of_nothing():
    shown = text(memory_detail.parts(section(nodes=NODES), per_node=True))
    assert "l1.gdn.qkvz" in shown
    assert "l0.gdn.add" not in shown
    assert [line.split() for line in shown.splitlines() if "l0.gdn.qkvz" in line] == [
        ["l0.gdn.qkvz", "linear", "1", "1.0", "2.0", "0.0", "3.0", "1.0"]
    ]


def test_that_nodes_share_a_workspace_stands_by_their_table():
    shared, alone = (
        " ".join(text(memory_detail.parts(section(nodes=nodes), per_node=True)).split())
        for nodes in (NODES, NODES[:2])
    )
    said = "nodes whose kernels are of one family share it"
    assert said in shared
    assert said not in alone


def test_an_accounting_that_says_nothing_above_its_numbers_starts_with_the_nodes():
    first, *_ = memory_detail.parts(section(nodes=NODES))
    assert "embed.embed" in text([first])


def test_states_are_sorted_and_a_drafts_are_marked():
    states = [state("b.v", "main", MIB), state("a.k", "draft", MIB), state("a.k", "main", 0)]
    shown = text(memory_detail.parts(section(header=with_facts(slots="8"), states=states)))
    assert "slots  8" in shown
    rows = [line.split()[0] for line in shown.splitlines() if "paged_kv" in line]
    assert rows == ["b.v", "draft.a.k"]


def test_ops_without_a_kernel_and_workspaces_are_named():
    run = {"label": "decode", "mode": "decode", "rows": 1, "arena": MIB, "materialized": MIB}
    space = {
        "family": "attention", "name": "partials", "bytes": MIB, "run": "decode", "nodes": 2,
        "in_arena": True,
    }  # fmt: skip
    changes = {"runs": [run | {"uncovered": ["top_k"]}], "workspaces": [space]}
    shown = text(memory_detail.parts(section(header=with_facts(slots="8"), **changes)))
    assert "top_k" in shown
    assert [line.split() for line in shown.splitlines() if "partials" in line] == [
        ["attention", "2", "1.0", "partials", "yes"]
    ]


def both(key: str, size: int) -> dict[str, int]:
    """A prediction that is no range."""
    return {key: size, f"{key}_high": size}


def test_a_range_of_a_boot_shows_both_ends():
    known = boot(agrees=True)
    terms = [
        line.model_copy(update={"predicted": MIB, "predicted_high": 20 * MIB, "error_percent": off})
        for line, off in zip(known.terms, (0.0, -12.5), strict=True)
    ]
    lines = [line.model_copy(update={"predicted_high_mib": 2478}) for line in known.reserve]
    wide = known.model_copy(update={"terms": tuple(terms), "reserve": tuple(lines)})
    shown = text([boot_tables.terms(wide), boot_tables.reserve(wide)])
    inside, outside, ring = (line for line in shown.splitlines() if " .. " in line)
    assert "1.00 .. 20.00" in inside
    assert "inside" in inside
    assert "-12.5000 %" in outside
    assert "1 .. 2,478" in ring


def boot(*, agrees: bool) -> BootSection:
    line = {"term": "kv", "of": ["kv"], "measured_mib": 8.0} | both("predicted", 7 * MIB)
    none = {"term": "snapshots", "of": ["ring", "prefix"], "measured_mib": 0.0}
    none |= both("predicted", MIB)
    rest = {"tolerance_percent": 0.1, "agrees": agrees}
    reserve = {"name": "ring", "of": "a ring", "predicted_mib": 1, "predicted_high_mib": 1}
    reserve |= {"printed_mib": 9}
    return BootSection.model_validate(
        {
            "source": "b.toml",
            "checkpoint": "a/b",
            "version": 2,
            "kv_blocks": 4321,
            "draft_kv_blocks": 1234,
            "terms": [
                line | rest | {"error_percent": -12.5},
                none | rest | {"error_percent": None},
            ],
            "reserve": [reserve | {"agrees": agrees}],
            "unattributed": MIB,
        }
    )


def test_a_boot_shows_predicted_measured_error_tolerance_and_result():
    shown = text([boot_tables.terms(boot(agrees=False)), boot_tables.reserve(boot(agrees=False))])
    rows = [line.split() for line in shown.splitlines()]
    assert ["kv", "7.00", "8.0", "-12.5000", "%", "0.1", "%", "MISSES", "kv"] in rows
    assert "snapshots 1.00 0.0 of none 0.1 % MISSES ring + prefix" in map(" ".join, rows)
    assert ["ring", "1", "9", "MISSES", "a", "ring"] in rows


def test_a_boot_says_which_blocks_it_counts_and_in_which_unit():
    shown = " ".join(
        text(boot_tables.parts(cast("Any", SimpleNamespace(boot=boot(agrees=True))))).split()
    )
    assert "Boot of a/b (met, version 2): its ledger in MiB" in shown
    assert "kv is the 4,321 blocks that the boot itself took, and 1,234 of the draft head" in shown
    assert "Its preflight in whole MiB" in shown
    noted = boot(agrees=True).model_copy(update={"note": "nobody says its slots"})
    assert "nobody says its slots" in text(
        boot_tables.parts(cast("Any", SimpleNamespace(boot=noted)))
    )


def test_a_boot_names_what_it_misses():
    assert boot(agrees=True).misses == ()
    assert boot(agrees=False).misses == ("kv", "snapshots", "reserve ring")
