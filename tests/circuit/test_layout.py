"""The arena: nothing alive overlaps, everything is aligned, first fit goes low."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metpipe.circuit import Element, Plan, edge_rows, layout, live_ranges, tensor_bytes
from metpipe.circuit.layout import ALIGNMENT

from .toy import IDENTICAL, Toy, patiently, plan, rule

ONES = [rule(op, [op]) for op in ("embed", "rms_norm", "linear", "residual_add", "final_norm")]


def chain(*dims: int) -> Toy:
    """Embed and then one linear per further dim."""
    toy = Toy().add("embed", "embed", "", "e0", weight="bf16", dim=dims[0])
    for index, dim in enumerate(dims[1:], start=1):
        toy.add(
            f"o{index}", "linear", f"e{index - 1}", f"e{index}", role="o", weight="bf16", dim=dim
        )
    return toy.output(f"e{len(dims) - 1}")


def test_dead_bytes_are_used_again() -> None:
    made = layout(plan(chain(128, 128, 128, 128).circuit(), *ONES), 1)
    assert [place.offset for place in made.places.values()] == [0, 256, 0, 256]
    assert (made.total, made.materialized) == (512, 1024)


def test_offsets_are_aligned_and_the_end_is_not_rounded() -> None:
    made = layout(plan(chain(50, 50).circuit(), *ONES), 1)
    assert [(place.offset, place.bytes) for place in made.places.values()] == [(0, 100), (256, 100)]
    assert made.total == 356


def test_of_edges_born_together_the_larger_is_placed_first() -> None:
    toy = Toy().add("embed", "embed", "", "small", weight="bf16", dim=64)
    toy.nodes[0] = toy.nodes[0].__class__(
        **{name: getattr(toy.nodes[0], name) for name in toy.nodes[0].__slots__}
        | {"outputs": ("small", "large")}
    )
    toy.edges["large"] = toy.edges["small"].__class__(
        "large", "bf16", "n", "512", 512, 0, (), True, None
    )
    made = layout(plan(toy.output("small").circuit(), *ONES), 1)
    assert made.places["large"].offset == 0
    assert made.places["small"].offset == 1024


def test_an_output_lives_to_the_end() -> None:
    toy = chain(128, 128, 128).output("e0")
    made = plan(toy.circuit(), *ONES)
    assert live_ranges(made) == {"e0": (0, 2), "e1": (1, 2), "e2": (2, 2)}


def test_a_fused_edge_takes_no_room() -> None:
    fused = rule("fused", ["embed", "linear"], numerics=IDENTICAL, priority=100)
    made = layout(plan(chain(4096, 128).circuit(), *ONES, fused), 1)
    assert list(made.places) == ["e1"]
    assert made.total == 256


def test_sizes_follow_the_stored_format_and_the_rows() -> None:
    wide = rule("wide", [Element("linear", writes="f32")], priority=50)
    made = plan(chain(128, 128).circuit(), *ONES, wide)
    assert layout(made, 3).places["e1"].bytes == 3 * 128 * 4


@pytest.mark.parametrize(("mode", "rows"), [("multi_seq", 64), ("prefill", 1)])
def test_the_head_of_a_prefill_has_one_row(mode: str, rows: int) -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16")
    circuit = toy.add("norm", "final_norm", "x", "y", rows="s", weight="bf16").output("y").circuit()
    made = plan(circuit, *ONES, mode=mode, rows=64)
    assert edge_rows(made, circuit.edges["x"], 64) == 64
    assert edge_rows(made, circuit.edges["y"], 64) == rows
    assert layout(made, 64).places["y"].bytes == rows * 16


def test_an_edge_from_outside_the_section_lives_from_the_start() -> None:
    toy = Toy().add("embed", "embed", "", "x", weight="bf16", dim=128)
    toy.block("draft.b", section="draft").add("norm", "rms_norm", "x", "y", weight="bf16", dim=128)
    circuit = toy.output("y").circuit()
    draft = plan(circuit, rule("norm", ["rms_norm"], modes=["draft"]), mode="draft")
    assert live_ranges(draft) == {"x": (0, 0), "y": (0, 0)}
    main = plan(circuit, *ONES)
    assert live_ranges(main) == {"x": (0, 0)}, "the draft's reader is no group of this plan"


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Random DAGs of adds and linears over edges of random widths."""
    count = draw(st.integers(2, 24))
    toy = Toy().add("n0", "embed", "", "e0", weight="bf16", dim=draw(st.integers(1, 700)))
    for index in range(1, count):
        source = draw(st.integers(max(0, index - 6), index - 1))
        dim = draw(st.integers(1, 700))
        toy.add(f"n{index}", "linear", f"e{source}", f"e{index}", role="o", weight="bf16", dim=dim)
    for edge in [edge.id for edge in toy.edges.values() if not edge.consumers]:
        toy.output(edge)
    fused = rule("pair", ["linear", "linear"], numerics=IDENTICAL, priority=100)
    return plan(toy.circuit(), *ONES, *([fused] if draw(st.booleans()) else []))


@patiently
@given(plans(), st.integers(1, 70))
def test_live_edges_never_overlap(made: Plan, rows: int) -> None:
    found, ranges = layout(made, rows), live_ranges(made)
    assert set(found.places) == made.materialized
    for edge_id, place in found.places.items():
        edge = made.circuit.edges[edge_id]
        assert place.offset % ALIGNMENT == 0
        assert place.bytes == tensor_bytes(made.stored[edge_id], rows, edge.dim)
        start, end = ranges[edge_id]
        for other_id, other in found.places.items():
            meets = ranges[other_id][0] <= end and start <= ranges[other_id][1]
            if other_id != edge_id and meets:
                ends_before = place.offset + place.bytes <= other.offset
                assert ends_before or other.offset + other.bytes <= place.offset


@patiently
@given(plans(), st.integers(1, 70))
def test_the_arena_holds_what_is_alive_at_once_and_no_more_than_everything(
    made: Plan, rows: int
) -> None:
    found, ranges = layout(made, rows), live_ranges(made)
    alive = [
        sum(found.places[edge].bytes for edge, (start, end) in ranges.items() if start <= at <= end)
        for at in range(len(made.groups))
    ]
    everything = sum(-(-place.bytes // ALIGNMENT) * ALIGNMENT for place in found.places.values())
    assert max(alive) <= found.total <= everything
    assert found.materialized == sum(place.bytes for place in found.places.values())


@patiently
@given(plans())
def test_every_edge_that_a_group_touches_is_placed_while_it_runs(made: Plan) -> None:
    ranges = live_ranges(made)
    for group in made.groups:
        for index in group.nodes:
            node = made.circuit.nodes[index]
            for edge in (*node.inputs, *node.outputs):
                if edge in made.materialized:
                    start, end = ranges[edge]
                    assert start <= group.index <= end
