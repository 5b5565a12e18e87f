"""The diff as rich tables: the forwards, the cases of each mode, the differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from metpipe.nouns import number_of
from metpipe.report.case_tables import case_tables
from metpipe.report.control_lines import controls
from metpipe.report.diff_section import Comparison, DiffSection, Localized, Timing
from metpipe.report.invariance_tables import invariance
from metpipe.report.oracle_tables import oracle
from metpipe.report.rule_tables import rule, rule_lines
from metpipe.report.schema import Report
from metpipe.report.shown_case import ShownCase, shown_cases
from metpipe.report.units import (
    count,
    distance,
    fraction,
    indented,
    milliseconds,
    plain_table,
    ratio,
)

__all__ = ["parts"]

REFERENCE = "legacy"
NOISE = 1.25
"""Times of the reference and of its repeat further apart than this: something else ran beside."""
MAX_DETAILS = 12
"""Differing comparisons that get a line; report.json has all."""


def parts(report: Report) -> Iterator[RenderableType]:
    """What there is to show of the diff, the oracle and the rule."""
    if report.diff is not None:
        yield from _diff(report.diff)
    if report.oracle is not None:
        yield Group(oracle(report.oracle), indented(report.oracle.sentence))
    if report.rule is not None:
        yield Group(rule(report.rule), *rule_lines(report.rule))


def _diff(diff: DiffSection) -> Iterator[RenderableType]:
    cases = shown_cases(diff)
    if cases:
        yield forwards(diff, cases)
    yield from case_tables(diff)
    if differing := list(_differing(cases)):
        yield Group(differences(differing), *_places(diff.localized))
    yield from invariance(diff.invariance, diff.invariance_steps)
    yield Group(Text("Controls", style="bold"), controls(diff))


def forwards(diff: DiffSection, cases: Sequence[ShownCase]) -> Table:
    """One row a forward: what was compared over all cases, what differs, and its time."""
    launches = {v.name: v.launches_per_step for v in diff.variants if v.launches_per_step}
    shown = ("launches/step",) if launches else ()  # of one-row decode, which not every mode has
    table = plain_table(_title(diff, cases), "forward", "compared", "differ", *shown)
    table.add_column("ms/step", justify="right")
    table.add_column("speed", justify="right")
    table.add_column("result")
    for name in _names(diff, cases):
        found = [c for case in cases for c in case.comparisons if c.variant == name]
        table.add_row(
            name,
            f"{sum(c.steps for c in found)} steps" if found else "-",
            count(sum(c.mismatched_steps for c in found)) if found else "-",
            *(count(launches.get(name)) for _ in shown),
            milliseconds(_step_ms(cases, name)),
            _speed(diff, cases, name),
            _result(found, is_repeat=name in diff.repeat_variants),
        )
    return table


def _speed(diff: DiffSection, cases: Sequence[ShownCase], name: str) -> str:
    """How many times as fast as the reference; `noisy` where the reference's own repeat is off."""
    reference = _whole_ms(cases, REFERENCE)
    repeats = [_whole_ms(cases, repeat) for repeat in diff.repeat_variants]
    if any(_far_apart(reference, repeat) for repeat in repeats):
        return "noisy"
    return ratio(reference, _whole_ms(cases, name))


def _far_apart(one: float | None, other: float | None) -> bool:
    """Whether two times of one program differ so much that no ratio of times means anything."""
    return one is not None and other is not None and max(one, other) > NOISE * min(one, other)


def _title(diff: DiffSection, cases: Sequence[ShownCase]) -> str:
    steps = sorted({case.steps for case in cases})
    each = f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
    return f"Diff, {diff.mode}: {_ran(cases)}, {each} each, {diff.graphs}"


def _ran(cases: Sequence[ShownCase]) -> str:
    """The prompts by their lengths; of more modes than plain decoding, how many cases there are."""
    modes = len({case.mode for case in cases})
    if {case.mode for case in cases} != {"single"}:
        of_modes = f" of {modes} modes" if modes > 1 else ""
        return f"{number_of(len(cases), 'case')}{of_modes}"
    lengths = ", ".join(case.token_range for case in cases[:6])
    more = ", ..." if len(cases) > 6 else ""
    tokens = "token" if lengths == "1" else "tokens"
    return f"{number_of(len(cases), 'prompt')} of {lengths}{more} {tokens}"


def _names(diff: DiffSection, cases: Sequence[ShownCase]) -> list[str]:
    """The forwards in the order they ran; the reference first."""
    named = [REFERENCE]
    for case in cases:
        named += [timing.variant for timing in case.timings]
        named += [comparison.variant for comparison in case.comparisons]
    return list(dict.fromkeys([*named, *(variant.name for variant in diff.variants)]))


def _result(found: Sequence[Comparison], *, is_repeat: bool) -> Text:
    if not found:
        return Text("reference", style="dim")
    differing = [comparison for comparison in found if not comparison.equal]
    if not differing:
        return Text("repeats" if is_repeat else "equal", style="green")
    if is_repeat:
        return Text("DOES NOT REPEAT", style="bold red")
    if all(comparison.expect == "report" for comparison in differing):
        return Text("differs, not judged", style="yellow")
    return Text("DIFFERS", style="bold red")


def _step_ms(cases: Sequence[ShownCase], name: str) -> float | None:
    """The mean over cases, whose ratios are the speeds; none where any is from another run."""
    timed = _timed(cases, name)
    return fmean(timed) if timed else None


def _whole_ms(cases: Sequence[ShownCase], name: str) -> float | None:
    """A step of every case together, so that two forwards are told apart over the same work."""
    timed = _timed(cases, name)
    return sum(timed) if timed else None


def _timed(cases: Sequence[ShownCase], name: str) -> list[float]:
    timings = [t for case in cases for t in case.timings if t.variant == name]
    return [_ms(t) for t in timings] if all(map(_is_fresh, timings)) else []


def _is_fresh(timing: Timing) -> bool:
    return not timing.cached and timing.step_ms_median is not None


def _ms(timing: Timing) -> float:
    assert timing.step_ms_median is not None
    return timing.step_ms_median


def _differing(cases: Sequence[ShownCase]) -> Iterator[tuple[ShownCase, Comparison]]:
    for case in cases:
        for comparison in case.comparisons:
            if not comparison.equal:
                yield case, comparison


def differences(found: Sequence[tuple[ShownCase, Comparison]]) -> Table:
    """One row a differing comparison: where it starts and how far apart it is."""
    table = plain_table("Differences", "forward")
    for name in ("case", "starts at"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "bytes", "max abs", "ULP", "top-1"):
        table.add_column(name, justify="right", no_wrap=True)
    for case, comparison in found[:MAX_DETAILS]:
        name = f"{case.full_name} ({case.token_range})" if case.mode == "single" else case.full_name
        table.add_row(comparison.variant, name, case.place(comparison), *_facts(comparison))
    if len(found) > MAX_DETAILS:
        table.add_row(f"and {len(found) - MAX_DETAILS} more", style="dim")
    return table


def _facts(comparison: Comparison) -> tuple[str, ...]:
    return (
        f"{comparison.mismatched_steps} of {comparison.steps}",
        count(comparison.max_mismatched_bytes),
        *distance(comparison.severity),
        fraction(comparison.top1_agreement),
    )


def _places(found: Sequence[Localized]) -> Iterator[Padding]:
    for place in found:
        start = f"starts in {place.node}: " if place.node else ""
        yield indented(start + place.sentence)
