"""Families and their workspaces: what a file may say, and what a run is charged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from metpipe.circuit import Select, StateDecl
from metpipe.errors import ConfigError
from metpipe.memory import Planned, evaluate, read_kernel_set
from metpipe.memory.kernel_set import Family, Workspace, parse_families
from metpipe.resources import PACKAGE

LINEAR = Family(
    "linear",
    frozenset({"linear.linear"}),
    (
        Workspace("partials", ("n*hidden*4", "sm_count*1000")),
        Workspace("scales", ("n*hidden/32*4",)),
    ),
)


def with_families(point, *families):
    kernel_set = replace(point.planned.kernel_set, families=families)
    return replace(point, planned=Planned(point.planned.circuit, kernel_set, Select.reference()))


def test_a_buffer_is_its_largest_expression(tiny, on):
    device = replace(tiny.device, sm_count=2)
    point = on(with_families(tiny, LINEAR), device=device, load={"isl": 1, "concurrency": 4})
    report = evaluate(point)
    # n = 4, hidden = 64: partials max(4 x 64 x 4, 2 x 1000) = 2000; scales ceil(256 / 32) x 4 = 32
    sizes = {space.name: (space.bytes, space.run) for space in report.counts.workspaces}
    assert sizes == {"partials": (2000, "decode"), "scales": (32, "decode")}
    assert report.term("workspace").low == 2032


def test_the_widest_run_decides_and_all_launches_share(tiny, on):
    one = Family("linear", frozenset({"linear.linear"}), (Workspace("x", ("n*k",)),))
    report = evaluate(on(with_families(tiny, one), load={"isl": 100}))
    # the widest input of a linear is down's 96; the head's is 64
    (space,) = report.counts.workspaces
    assert (space.bytes, space.run) == (100 * 96, "prefill")
    assert space.nodes == 3 * 6 + 1  # q, k, v, o, gate_up, down of each layer, and the head


def test_a_family_without_a_launch_needs_nothing(tiny):
    unused = Family("moe", frozenset({"moe.experts"}), (Workspace("x", ("n*experts",)),))
    assert evaluate(with_families(tiny, unused)).counts.workspaces == ()


def test_an_unknown_name_is_refused(tiny):
    lost = Family("linear", frozenset({"linear.linear"}), (Workspace("x", ("n*experts",)),))
    with pytest.raises(ConfigError, match=r"workspace linear\.x.*'experts'"):
        evaluate(with_families(tiny, lost))


def test_threads_must_be_given_where_an_expression_names_them(tiny):
    family = Family("linear", frozenset({"linear.linear"}), (Workspace("x", ("threads*64",)),))
    with pytest.raises(ConfigError, match="threads"):
        evaluate(with_families(tiny, family))
    report = evaluate(replace(with_families(tiny, family), threads=3))
    assert report.term("workspace").low == 192


FAMILIES = """
schema = 1
[[family]]
name = "attention"
kernels = ["attention.paged_attention"]
[[family.workspace]]
name = "partials"
bytes = ["n*q_heads*4", "threads*64"]
why = "one partial a head"
"""


def test_families_are_read():
    (family,) = parse_families(FAMILIES, "F.toml")
    sizes = ("n*q_heads*4", "threads*64")
    assert family.workspaces == (Workspace("partials", sizes, source="F.toml"),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ('why = "one', 'wy = "one', "wy"),
        ('bytes = ["n*q_heads*4", "threads*64"]', "bytes = []", "bytes"),
        ("threads*64", "threads-64", r"attention\.partials: 'threads-64' is no size"),
        ('kernels = ["attention.paged_attention"]', "kernels = []", "kernels"),
        ("[[family]]", "[[family]", "not valid TOML"),
    ],
)
def test_a_broken_file_is_refused(old, new, message):
    with pytest.raises(ConfigError, match=message):
        parse_families(FAMILIES.replace(old, new), "F.toml")


def test_a_family_twice_is_refused():
    with pytest.raises(ConfigError, match="'attention' appears more than once"):
        parse_families(FAMILIES + FAMILIES.replace("schema = 1", ""), "F.toml")


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"HARDWARE\.toml"):
        read_kernel_set(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "flag", "size"), [("f32", "f32", 4), ("{ssm_h_storage}", "f16-pool", 2)]
)
def test_recurrent_states_have_a_slot_each_and_a_dummy(tiny, on, dtype, flag, size):
    circuit = tiny.planned.circuit
    states = {
        f"l{layer}.gdn.h": StateDecl(
            f"l{layer}.gdn.h", "gdn.h", "recurrent", "sequence", dtype, 100, (10, 10), layer, "main"
        )
        for layer in range(2)
    }
    both = replace(circuit, states={**circuit.states, **states})
    point = replace(tiny, planned=Planned(both, tiny.planned.kernel_set, Select.all()), slots=4)
    report = evaluate(on(point, serve={"ssm_h_dtype": flag}))
    # 2 layers x (4 slots + dummy) x 100 elements
    assert report.term("states").low == 2 * 5 * 100 * size
    assert report.term("kv").low == evaluate(tiny).term("kv").low


def test_planning_imports_no_torch():
    code = "import sys, metpipe.memory; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=PACKAGE.parent)
    assert done.returncode == 0
