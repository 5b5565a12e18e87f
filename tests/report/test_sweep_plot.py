"""The plots of a sweep: what is drawn, and that no two words lie on each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from metpipe.report import picture_file, sweep_plot
from metpipe.report.sweep_axes import axes
from metpipe.report.sweep_edge import edge
from metpipe.report.sweep_record import JobRow, SweepRecord
from tests.report.sweep_examples import GIB, grid, job, line, plan, refused

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is an extra: metpipe[plot]")
FigureCanvasAgg = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
plot_frontier = pytest.importorskip("metpipe.report.plot_frontier")
plot_terms = pytest.importorskip("metpipe.report.plot_terms")

TABLES = "built, 16.9 GiB"
DEVICES = {"h100_sxm": 67 * GIB, "h200_sxm": 119 * GIB, "b200": 152 * GIB}


def over_devices() -> tuple[JobRow, ...]:
    return tuple(
        job(
            0,
            f"hardware={name}",
            f"workload.isl={isl}",
            f"workload.concurrency={n}",
            memory=plan(isl, n, budget=budget, device=name),
        )
        for name, budget in DEVICES.items()
        for isl in (1024, 8192, 32768, 120_000)
        for n in (8, 64, 256)
    )


def over_models(models: int, *devices: str) -> tuple[JobRow, ...]:
    """Models of long names; the fourth is far larger than the others."""
    return tuple(
        job(
            0,
            f"model=nemotron_{number}_super_120b_a12b_nvfp4",
            f"hardware={name}",
            memory=plan(
                65536, 9 if number == 4 else 1 + number % 3, budget=GIB * (24 + 40 * place)
            ),
        )
        for number in range(models)
        for place, name in enumerate(devices)
    )


SIX = ("l4", "h100_sxm", "rtx_pro_6000", "h200_sxm", "mi300x", "b200")
MANY = {
    "models and devices": over_models(26, *SIX),
    "a few of both": over_models(6, *SIX[:4]),
    "models": over_models(26, "b200"),
    "many devices": tuple(
        job(
            0,
            f"hardware=some_device_{number}",
            memory=plan(65536, 3 + number % 2, budget=GIB * (12 + 9 * number)),
        )
        for number in range(16)
    ),
    "few models": over_models(3, *SIX),
}

SWEEPS: dict[str, tuple[JobRow, ...]] = {
    **MANY,
    "three": line(3),
    "forty": line(40),
    "grid": grid(),
    "over budget": grid(lengths=(1024, 65536), numbers=(1, 64, 256)),
    "far below": tuple(job(i, f"slots={i}", memory=plan(i, 1, budget=900 * GIB)) for i in (1, 2)),
    "devices": tuple(
        job(0, f"hardware={name}", memory=plan(65536, 1, budget=budget, device=name))
        for name, budget in DEVICES.items()
    ),
    "three axes": over_devices(),
    "refused": (*grid()[:8], refused(8, "workload.concurrency=16", "workload.isl=32768")),
    "tables": grid(expert_tables=TABLES),
    "long names": tuple(
        job(
            0,
            f"hardware={name}",
            f"serve.speculative={drafts}",
            f"serve.kv_cache_dtype={dtype}",
            memory=plan(65536, 1, budget=budget, device=name),
        )
        for name, budget in DEVICES.items()
        for drafts in ("True", "False")
        for dtype in ("bf16", "null")
    ),
}


def drawn(figure: Any) -> Any:
    FigureCanvasAgg(figure).draw()
    return figure


def words(figure: Any) -> list[Any]:
    """Every text of a figure that is seen, but for the ticks, which matplotlib places."""
    ticks = {
        id(label)
        for axis in figure.axes
        for label in (*axis.get_xticklabels(), *axis.get_yticklabels())
    }
    return [
        text
        for text in figure.findobj(matplotlib.text.Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in ticks
    ]


def overlaps(texts: Sequence[Any]) -> list[tuple[str, str]]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        (a, b)
        for (a, one), (b, other) in combinations(boxes, 2)
        if one.x0 + 1 < other.x1
        and other.x0 + 1 < one.x1
        and one.y0 + 1 < other.y1
        and other.y0 + 1 < one.y1
    ]


@pytest.fixture(autouse=True)
def _style() -> Any:
    from metpipe.report.plot_style import RC

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


@pytest.mark.parametrize("name", list(SWEEPS))
def test_no_words_of_the_stacked_plot_lie_on_each_other_or_beside_the_page(name):
    jobs = SWEEPS[name]
    figure = drawn(plot_terms.draw(jobs, axes(jobs)))
    texts = words(figure)
    assert overlaps(texts) == []
    page = figure.bbox
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= page.x1, text.get_text()
        assert box.y0 >= 0
        assert box.y1 <= page.y1, text.get_text()


@pytest.mark.parametrize("name", list(MANY))
@pytest.mark.filterwarnings("error")
def test_labels_of_many_jobs_have_room(name):
    """No label lies on another one or on a heading, and the layout was carried through."""
    jobs = SWEEPS[name]
    figure = drawn(plot_terms.draw(jobs, axes(jobs)))
    labels = [
        label
        for axis in figure.axes
        for label in axis.get_xticklabels()
        if label.get_text() and label.get_visible()
    ]
    assert {label.get_text() for label in labels} == set(max(axes(jobs), key=size).values)
    assert overlaps([*labels, *words(figure)]) == []
    for axis in figure.axes:
        assert axis.get_window_extent().height > 1.5 * figure.dpi


def size(axis: Any) -> int:
    return len(axis.values)


def test_a_few_bars_fill_their_panel():
    jobs = SWEEPS["a few of both"]
    for axis in plot_terms.draw(jobs, axes(jobs)).axes:
        first, last = axis.get_xlim()
        assert 6 / (last - first) > 0.8


@pytest.mark.parametrize("name", ["grid", "over budget", "three axes", "refused", "tables"])
def test_no_words_of_the_frontier_lie_on_each_other(name):
    jobs = SWEEPS[name]
    figure = drawn(plot_frontier.draw(jobs, axes(jobs)))
    assert overlaps(words(figure)) == []


NEAR = {
    f"{name}, {share:.2f}": tuple(
        job(i, f"slots={i}", memory=plan(8192, i, budget=int(share * plan(8192, 4).high), **more))
        for i in (1, 4, 5, 6)
    )
    for share in (0.25, 0.5, 0.8, 0.9, 0.97, 1.0, 1.03, 1.06, 1.1, 1.2, 1.4)
    for name, more in {"one": {}, "fits": {"answer": "fits"}}.items()
}
"""Budgets that lie near the top of some bar, or near its label."""


@pytest.mark.parametrize("name", [*NEAR, *SWEEPS])
def test_no_total_covers_a_budget(name):
    jobs = (NEAR | SWEEPS)[name]
    figure = drawn(plot_terms.draw(jobs, axes(jobs)))
    for axis in figure.axes:
        lines = [axis.transData.transform(line.get_segments()[0]) for line in axis.collections]
        assert len(lines) > 1
        for text in (text for text in axis.texts if text.get_zorder() == 4 and text.get_text()):
            box = text.get_window_extent()
            for (left, y), (right, _) in lines:
                beside = box.x1 < left or right < box.x0
                assert beside or not box.y0 < y < box.y1, text.get_text()


def heights(figure: Any) -> float:
    """All bars of a figure, in GiB."""
    return float(sum(patch.get_height() for axis in figure.axes for patch in axis.patches))


@pytest.mark.parametrize("name", ["three", "forty", "grid", "three axes", "devices"])
def test_the_bars_of_a_figure_are_the_upper_ends_of_its_plans(name):
    jobs = SWEEPS[name]
    figure = plot_terms.draw(jobs, axes(jobs))
    wanted = sum(j.memory.high for j in jobs if j.memory) / GIB
    assert heights(figure) == pytest.approx(wanted, rel=1e-6)


def test_status_range_budget_answer_and_decision_are_told():
    jobs = SWEEPS["tables"]
    said = [text.get_text() for text in words(drawn(plot_terms.draw(jobs, axes(jobs))))]
    for part in (
        "weights: exact",
        "driver: uncalibrated",
        "other: calibrated",
        "other: step, tables",
        "up to a range's end",
        "budget",
        "does not fit",
        f"expert tables: {TABLES}",
        "qwen3_8b on b200: memory, term by term",
        "GiB",
    ):
        assert part in said
    assert "1 at once" in said


def test_uncalibrated_is_hatched_and_exact_is_not():
    jobs = SWEEPS["three"]
    figure = plot_terms.draw(jobs, axes(jobs))
    (axis,) = figure.axes
    hatches = {patch.get_hatch() for patch in axis.patches}
    assert hatches == {"", "////"} or hatches == {None, "////"}


def test_a_bar_is_hatched_as_its_own_plan_says():
    """One device is calibrated, the other isn't: each bar of the same term has its own status."""
    known, unknown = (plan(8192, 1, device=name) for name in ("gb10", "b200"))
    driver = known.terms[-1].model_copy(update={"status": "calibrated", "high": GIB // 2})
    known = known.model_copy(update={"terms": (*known.terms[:-1], driver)})
    plans = {"gb10": known, "b200": unknown}
    jobs = [job(0, f"hardware={name}", memory=one) for name, one in plans.items()]
    figure = plot_terms.draw(jobs, axes(jobs))
    (axis,) = figure.axes
    hatched = [int(patch.get_x() + 0.5) for patch in axis.patches if patch.get_hatch()]
    assert set(hatched) == {1}
    assert "driver: uncalibrated in part" in [text.get_text() for text in words(figure)]


def test_a_refused_job_is_told_at_its_place():
    jobs = SWEEPS["refused"]
    said = [text.get_text() for text in words(plot_terms.draw(jobs, axes(jobs)))]
    assert said.count("refused") == 1


def test_the_edge_of_what_fits_keeps_the_outermost_points_only():
    plans = [j.memory for j in SWEEPS["grid"] if j.memory]
    for end in ("surely", "possibly"):
        points = edge(plans, end)
        lengths, numbers, _ = zip(*points, strict=True)
        assert list(lengths) == sorted(lengths)
        assert list(numbers) == sorted(numbers, reverse=True)
        for one in plans:  # whatever fits lies below the edge
            fits = one.answer == "fits" or (end == "possibly" and one.answer == "depends")
            load = one.workload
            reached = any(x >= load.isl and y >= load.concurrency for x, y, _ in points)
            assert reached is fits


def test_a_point_where_the_question_ended_is_no_edge():
    plans = [j.memory for j in grid(lengths=(1024, 40_000), numbers=(1, 2)) if j.memory]
    found = {
        (point.tokens, point.sequences): point.asked_no_further for point in edge(plans, "surely")
    }
    assert found[1024, 256]  # more sequences were not asked
    assert not found[40_000, 8]
    assert found[130_000, 2]  # nor longer prompts


def test_an_end_of_what_may_be_asked_is_told_where_it_is_in_the_picture():
    """With slots that follow, 128 sequences are asked about, and three may be the most that fit."""
    jobs = SWEEPS["over budget"]
    far = [
        one.model_copy(
            update={
                "memory": one.memory.model_copy(
                    update={
                        "limits": {
                            key: limit.model_copy(update={"high": 10**9})
                            for key, limit in one.memory.limits.items()
                        }
                    }
                )
            }
        )
        for one in jobs
        if one.memory
    ]
    said = [[t.get_text() for t in words(plot_frontier.draw(j, axes(j)))] for j in (jobs, far)]
    assert [any("asked up" in text for text in texts) for texts in said] == [True, False]


def test_a_title_is_folded_between_the_values_that_it_names():
    jobs = SWEEPS["long names"]
    titles = [axis.get_title(loc="left") for axis in plot_terms.draw(jobs, axes(jobs)).axes]
    assert "serve.speculative=True,\nserve.kv_cache_dtype=bf16" in titles


def test_what_is_not_drawn_is_counted():
    jobs = [
        *grid()[:6],
        *(
            refused(i, "workload.concurrency=16", f"workload.isl={n}")
            for i, n in ((6, 1024), (7, 8192))
        ),
    ]
    said = [text.get_text() for text in words(plot_terms.draw(jobs, axes(jobs)))]
    assert "not drawn: 2 jobs without a plan" in said
    many = grid(numbers=range(1, 15), lengths=range(1000, 1015))
    said = [text.get_text() for text in words(plot_terms.draw(many, axes(many)))]
    assert "not drawn: 30 jobs beyond the first 12 panels" in said


def test_a_sweep_writes_its_plots_whole_and_only_those_it_is_good_for(tmp_path):
    paths = sweep_plot.draw(SweepRecord(jobs=SWEEPS["grid"]), tmp_path)
    assert [path.name for path in paths] == ["sweep.png", "frontier.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.png", "sweep.png"]
    (only,) = sweep_plot.draw(SweepRecord(jobs=SWEEPS["three"]), tmp_path)
    assert only.name == "sweep.png"


def test_plots_are_the_same_whatever_the_user_s_own_style_is(tmp_path):
    sweep = SweepRecord(jobs=SWEEPS["three"])
    (path,) = sweep_plot.draw(sweep, tmp_path)
    plain = path.read_bytes()
    matplotlib.rcParams.update({"font.size": 30, "axes.facecolor": "black"})
    sweep_plot.draw(sweep, tmp_path)
    assert path.read_bytes() == plain


def test_equal_plans_are_not_worth_a_plot():
    same = tuple(job(i, f"seed={i}", memory=plan(9, 1)) for i in range(3))
    assert not sweep_plot.worth_drawing(SweepRecord(jobs=same))
    assert not sweep_plot.worth_drawing(SweepRecord(jobs=(job(0, "seed=1"), job(1, "seed=2"))))
    assert sweep_plot.worth_drawing(SweepRecord(jobs=SWEEPS["three"]))


def test_without_matplotlib_a_line_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    from metpipe.report import sweep

    monkeypatch.setattr(picture_file, "find_spec", lambda _: None)
    monkeypatch.setattr(sweep, "rows", lambda *_, **__: SWEEPS["three"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    sweep.write(tmp_path, Console(width=200))
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("plot")]
    assert "pip install 'metpipe[plot]', then metpipe sweep=" in line
    assert [path.name for path in Path(tmp_path).iterdir()] == ["sweep.json"]
