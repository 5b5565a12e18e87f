"""A grid of loads in the report: counts, reach, the console and the picture."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from metpipe.report import grid_picture, grid_tables, picture_file
from metpipe.report.grid_section import GridSection
from metpipe.report.schema import StageRow
from tests.report import examples

GIB = 1 << 30
NUMBERS, PROMPTS = (1, 2, 4), (1024, 2048, 4096, 8192)


def section(**changes: object) -> GridSection:
    """Room falls with tokens; a range of 2 GiB; the serve takes four sequences of up to 4096."""
    low = [
        None if number == 4 and isl > 4096 else 7 * GIB - number * isl * (1 << 20)
        for number in NUMBERS
        for isl in PROMPTS
    ]
    facts: dict[str, object] = {
        "device": "h100-sxm",
        "budget": 60 * GIB,
        "isl": PROMPTS,
        "osl": (256,),
        "concurrency": NUMBERS,
        "headroom_low": low,
        "headroom_high": [None if room is None else room + 2 * GIB for room in low],
    }
    return GridSection.model_validate(facts | changes)


def shown(grid: GridSection, width: int = 100) -> list[str]:
    out = io.StringIO()
    stages = (StageRow(name="grid", how="ran", seconds=1.26, cached=False),)
    report = examples.report(grid=grid, stages=stages)
    for part in grid_tables.parts(report):
        Console(file=out, width=width).print(part)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_how_many_loads_come_to_what():
    assert section().counts() == {"fits": 6, "depends": 3, "does not fit": 2, None: 1}


def test_how_far_each_number_of_sequences_reaches():
    reaches = [(row.concurrency, row.surely, row.possibly) for row in section().reaches()]
    assert reaches == [(1, 4096, 8192), (2, 2048, 4096), (4, 1024, 2048)]
    none = section(headroom_low=[-1] * 12, headroom_high=[0, *[-1] * 11])
    assert [(row.surely, row.possibly) for row in none.reaches()] == [
        (None, 1024), (None, None), (None, None)
    ]  # fmt: skip


def test_the_console_has_a_row_for_each_number_and_the_counts_below():
    lines = shown(section())
    assert lines[0] == "Grid on h100-sxm: the longest of 4 prompts that fits"
    assert lines[1] == "at once 256 generated"
    assert lines[2] == "1 4,096 (surely) to 8,192 (possibly)"
    assert lines[4] == "4 1,024 (surely) to 2,048 (possibly)"
    said = "6 fit, 3 depend on a range, 2 do not fit, 1 beyond what the serve takes"
    assert lines[5] == f"12 loads, in 1.3 s: {said}"


def test_of_many_numbers_some_are_shown_with_both_ends():
    many = tuple(range(1, 101))
    assert grid_tables.spread(many, 12)[0] == 1
    assert grid_tables.spread(many, 12)[-1] == 100
    assert len(set(grid_tables.spread(many, 12))) == 12
    assert grid_tables.spread(many[:3], 12) == [1, 2, 3]


def test_a_report_without_a_grid_shows_none():
    assert list(grid_tables.parts(examples.report())) == []


def test_a_line_of_loads_has_no_picture(tmp_path):
    alone = section(concurrency=(1,), headroom_low=[1] * 4, headroom_high=[1] * 4)
    assert grid_picture.draw_grid(alone, "tiny", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_file, "find_spec", lambda name: None)
    assert "metpipe[plot]" in grid_picture.draw_grid(section(), "tiny", tmp_path)


@pytest.mark.parametrize("outputs", [1, 3, 6])
def test_the_picture_has_a_panel_for_each_output_up_to_four(outputs, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: metpipe[plot]")
    plot_grid = pytest.importorskip("metpipe.report.plot_grid")
    one = section()
    grid = section(
        osl=tuple(range(1, outputs + 1)),
        headroom_low=one.headroom_low * outputs,
        headroom_high=one.headroom_high * outputs,
    )
    figure = plot_grid.draw(grid, "tiny")
    panels = [axis for axis in figure.axes if axis.get_xlabel() and axis.get_visible()]
    assert len(panels) == min(outputs, 4)
    assert [axis.get_xscale() for axis in panels] == ["log"] * len(panels)
    path = grid_picture.draw_grid(grid, "tiny", tmp_path)
    assert path == str(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("room", "ticks"),
    [
        ((-40 * GIB, GIB // 4), ["-40.0", "-20.0", "0", "0.125", "0.25"]),
        ((-GIB // 4, 40 * GIB), ["-0.25", "-0.125", "0", "20.0", "40.0"]),
        ((-100 * GIB, GIB), ["-60.0", "-30.0", "0", "0.5", "1"]),
        ((-2 * GIB, -GIB), ["-2", "-1", "0"]),
        ((GIB, 2 * GIB), ["0", "1", "2"]),
    ],
)
def test_the_colours_are_named_at_zero_and_at_both_ends(room, ticks):
    """Of a small part above zero too; nothing more than a budget over it has a colour."""
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: metpipe[plot]")
    plot_grid = pytest.importorskip("metpipe.report.plot_grid")
    rooms = [room[0]] * 6 + [room[1]] * 6
    figure = plot_grid.draw(section(headroom_low=rooms, headroom_high=rooms), "tiny")
    bar = figure.axes[-1]
    assert [label.get_text() for label in bar.get_yticklabels()] == ticks


def test_a_grid_where_nothing_fits_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: metpipe[plot]")
    nothing = section(headroom_low=[-GIB] * 12, headroom_high=[-GIB] * 12)
    assert grid_picture.draw_grid(nothing, "tiny", tmp_path)
