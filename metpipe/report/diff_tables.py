"""The diff, the oracle and a single rule as rich tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from metpipe.report.control_lines import controls
from metpipe.report.diff_section import (
    Comparison,
    DiffSection,
    Localized,
    Prompt,
    RuleCase,
    Severity,
    Timing,
)
from metpipe.report.diff_section import OracleSection as Oracle
from metpipe.report.diff_section import RuleSection as Rule
from metpipe.report.schema import Report
from metpipe.report.units import (
    count,
    fraction,
    indented,
    milliseconds,
    plain_table,
    ratio,
    significant,
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
        yield forwards(report.diff)
        if differing := list(_differing(report.diff)):
            yield Group(differences(differing), *_places(report.diff.localized))
        yield Group(Text("Controls", style="bold"), controls(report.diff))
    if report.oracle is not None:
        yield Group(oracle(report.oracle), indented(report.oracle.sentence))
    if report.rule is not None:
        yield Group(rule(report.rule), *_rule_lines(report.rule))


def forwards(diff: DiffSection) -> Table:
    """One row a forward: what was compared over all prompts, what differs, and its time."""
    table = plain_table(_title(diff), "forward", "compared", "differ", "launches/step")
    table.add_column("ms/step", justify="right")
    table.add_column("speed", justify="right")
    table.add_column("result")
    for name in _names(diff):
        found = [c for p in diff.prompts for c in p.comparisons if c.variant == name]
        table.add_row(
            name,
            f"{sum(c.steps for c in found)} steps" if found else "-",
            count(sum(c.mismatched_steps for c in found)) if found else "-",
            count(next((v.launches_per_step for v in diff.variants if v.name == name), None)),
            milliseconds(_step_ms(diff.prompts, name)),
            _speed(diff, name),
            _result(found, is_repeat=name in {control.variant for control in diff.repeat}),
        )
    return table


def _speed(diff: DiffSection, name: str) -> str:
    """How many times as fast as the reference; `noisy` where the reference's own repeat is off."""
    reference = _step_ms(diff.prompts, REFERENCE)
    repeats = [_step_ms(diff.prompts, control.variant) for control in diff.repeat]
    if any(_far_apart(reference, repeat) for repeat in repeats):
        return "noisy"
    return ratio(reference, _step_ms(diff.prompts, name))


def _far_apart(one: float | None, other: float | None) -> bool:
    """Whether two times of one program differ so much that no ratio of times means anything."""
    return one is not None and other is not None and max(one, other) > NOISE * min(one, other)


def _title(diff: DiffSection) -> str:
    lengths = ", ".join(str(prompt.tokens) for prompt in diff.prompts[:6])
    more = ", ..." if len(diff.prompts) > 6 else ""
    prompts = "prompt" if len(diff.prompts) == 1 else "prompts"
    return (
        f"Diff, {diff.mode}: {len(diff.prompts)} {prompts} of {lengths}{more} tokens, "
        f"{diff.steps} steps each, {diff.graphs}"
    )


def _names(diff: DiffSection) -> list[str]:
    """The forwards in the order they ran; the reference first."""
    named = [REFERENCE]
    for prompt in diff.prompts:
        named += [timing.variant for timing in prompt.timings]
        named += [comparison.variant for comparison in prompt.comparisons]
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


def _step_ms(prompts: Sequence[Prompt], name: str) -> float | None:
    """The median over prompts; none where any of them is from another run."""
    timed = [t for prompt in prompts for t in prompt.timings if t.variant == name]
    return median(map(_ms, timed)) if timed and all(map(_is_fresh, timed)) else None


def _is_fresh(timing: Timing) -> bool:
    return not timing.cached and timing.step_ms_median is not None


def _ms(timing: Timing) -> float:
    assert timing.step_ms_median is not None
    return timing.step_ms_median


def _differing(diff: DiffSection) -> Iterator[tuple[int, Prompt, Comparison]]:
    for index, prompt in enumerate(diff.prompts):
        for comparison in prompt.comparisons:
            if not comparison.equal:
                yield index, prompt, comparison


def differences(found: Sequence[tuple[int, Prompt, Comparison]]) -> Table:
    """One row a differing comparison: where it starts and how far apart it is."""
    table = plain_table("Differences", "forward", "prompt", "prefill", "steps", "first", "bytes")
    for name in ("max abs", "ULP", "top-1"):
        table.add_column(name, justify="right")
    for index, prompt, comparison in found[:MAX_DETAILS]:
        table.add_row(comparison.variant, f"{index} ({prompt.tokens})", *_facts(comparison))
    if len(found) > MAX_DETAILS:
        table.add_row(f"and {len(found) - MAX_DETAILS} more", style="dim")
    return table


def _facts(comparison: Comparison) -> tuple[str, ...]:
    at = comparison.prefill_first_diff
    return (
        "equal" if comparison.prefill_equal else f"byte {count(at)}",
        f"{comparison.mismatched_steps} of {comparison.steps}",
        count(comparison.first_mismatch),
        count(comparison.max_mismatched_bytes),
        *_distance(comparison.severity),
        fraction(comparison.top1_agreement),
    )


def _distance(severity: Severity | None) -> tuple[str, str]:
    """The largest absolute difference, and the one in representable values."""
    return (
        ("-", "-") if severity is None else (significant(severity.max_abs), count(severity.max_ulp))
    )


def _places(found: Sequence[Localized]) -> Iterator[Padding]:
    for place in found:
        start = f"starts in {place.node}: " if place.node else ""
        yield indented(start + place.sentence)


def oracle(section: Oracle) -> Table:
    """One row a prompt under the outside implementation."""
    title = f"Oracle: {section.name} {section.version}, fp32, reading with {section.reader}"
    differences = ("max |difference|", "tolerated", "rms", "tolerated")
    table = plain_table(title, "prompt", "positions", "top-1", *differences)
    table.add_column("result")
    for index, row in enumerate(section.prompts):
        table.add_row(
            f"{index} ({row.tokens})",
            count(row.positions),
            fraction(row.top1_agreement),
            significant(row.max_abs_difference),
            significant(row.tolerance),
            significant(row.rms_difference),
            significant(row.rms_tolerance),
            Text("agrees", style="green") if row.passed else Text("DISAGREES", style="bold red"),
        )
    return table


def rule(section: Rule) -> Table:
    """One row a kind of values in the rule's microtest; where it differs, the rows at which."""
    table = plain_table(
        f"Rule {section.id} ({section.numerics}): {', '.join(section.kernels)}",
        *("values", "rows", "unequal bytes", "max abs", "ULP"),
    )
    for name, cases in groupby(section.cases, key=lambda case: case.name):
        table.add_row(*_row_of_cases(name, list(cases)))
    return table


def _row_of_cases(name: str, cases: Sequence[RuleCase]) -> tuple[str | Text, ...]:
    """One kind of values at all row counts: the worst of them, and at which it differs."""
    worst = max(cases, key=lambda case: case.unequal_bytes)
    differing = [case for case in cases if case.unequal_bytes]
    rows = "/".join(str(case.rows) for case in differing or cases)
    style = "bold red" if differing else "green"
    return name, rows, Text(count(worst.unequal_bytes), style=style), *_distance(worst.severity)


def _rule_lines(section: Rule) -> Iterator[Padding]:
    """Launches and time of both sides, then what it comes to."""
    times = f"{milliseconds(section.chain_ms_median)} -> {milliseconds(section.fused_ms_median)} ms"
    speed = ratio(section.chain_ms_median, section.fused_ms_median)
    launches = f"{section.chain_launches} -> {section.fused_launches} launches"
    yield indented(f"chain -> rule: {launches}, {times} ({speed})")
    yield indented(section.sentence, "green" if section.passed else "red")
