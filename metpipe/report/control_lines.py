"""One line a control: whether the evidence beside the comparisons counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.table import Table
from rich.text import Text

from metpipe.report.diff_section import Control, DiffSection

__all__ = ["control_lines", "controls"]

STYLES = {"ok": "green", "FAILED": "bold red", "BLIND": "bold yellow", "note": "cyan"}
WORDS = {
    "ok": "ok",
    "blind": "BLIND",
    "late": "BLIND",
    "early": "FAILED",
    "other_row": "FAILED",
    "lingers": "FAILED",
    "not_repeatable": "FAILED",
}
"""What a control found -> the word in front of its line."""
MAX_COUNTS = 6
"""Row counts that a line names one by one."""


def controls(diff: DiffSection) -> Table:
    """The lines as a grid, so that a long sentence folds beside its word."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=8, justify="right")
    grid.add_column(overflow="fold")
    for word, sentence in control_lines(diff):
        grid.add_row(Text(word, style=STYLES[word]), Text(sentence))
    return grid


def control_lines(diff: DiffSection) -> Iterator[tuple[str, str]]:
    """Repeats, detection controls, the self-test, then what limits the evidence."""
    yield from _repeats(diff)
    yield from _detections(diff)
    yield from _self_test(diff)
    yield from _unowned(diff)
    for pair in diff.vacuous:
        yield ("note" if pair.allowed else "BLIND", pair.sentence)
    for sentence in diff.unexercised:
        yield ("BLIND", sentence)
    yield from _coverage(diff)


def _repeats(diff: DiffSection) -> Iterator[tuple[str, str]]:
    """One line for all repeats that are equal, and one for each that is not."""
    of_table = [repeat for repeat in diff.repeat if repeat.mode == "invariance"]
    of_runs = [repeat for repeat in diff.repeat if repeat.mode != "invariance"]
    for found, said in ((of_runs, "equal to the reference"), (of_table, "equal to itself")):
        equal = [repeat for repeat in found if repeat.verdict == "ok"]
        if equal:
            names = ", ".join(dict.fromkeys(repeat.variant for repeat in equal))
            yield "ok", f"{names}: {said} in {len(equal)} of {len(found)} runs"
    for repeat in diff.repeat:
        if repeat.verdict != "ok":
            yield WORDS[repeat.verdict], repeat.sentence


def _detections(diff: DiffSection) -> Iterator[tuple[str, str]]:
    """A line for each variant and mode whose controls are as they must be; each other in full."""
    groups: dict[tuple[str, str], list[Control]] = {}
    for control in diff.controls:
        groups.setdefault((control.variant, control.mode), []).append(control)
    for (variant, mode), found in groups.items():
        good = [control for control in found if control.verdict == "ok"]
        if len(found) == 1 and good:
            yield "ok", good[0].sentence
        elif good:
            counted = f"{len(good)} of {len(found)} seen where they were changed, and nowhere else"
            yield "ok", f"controls, {variant}, {mode}: {counted}"
        for control in found:
            if control.verdict != "ok":
                yield WORDS[control.verdict], control.sentence


def _self_test(diff: DiffSection) -> Iterator[tuple[str, str]]:
    failed = [check for check in diff.self_test if not check.passed]
    for check in failed:
        yield ("FAILED", f"self-test of the comparer, {check.name}: {check.sentence}")
    if diff.self_test and not failed:
        yield ("ok", f"self-test of the comparer: {len(diff.self_test)} checks")
    if not diff.self_test:
        yield ("BLIND", "the comparer's self-test did not run")


def _unowned(diff: DiffSection) -> Iterator[tuple[str, str]]:
    for moved in diff.moved:
        labels = ", ".join(moved.labels)
        yield ("FAILED", f"{moved.case}, {moved.variant}: unowned bytes moved ({labels})")
    if not diff.moved:
        yield ("ok", "no byte moved that its step does not own")


def _coverage(diff: DiffSection) -> Iterator[tuple[str, str]]:
    """A line a forward: where no rule that claims equal bits applies, equality says little."""
    for variant in dict.fromkeys(row.variant for row in diff.coverage):
        own = [row for row in diff.coverage if row.variant == variant]
        bare: dict[str, set[int]] = {}
        for row in own:
            if row.bit_identical == 0:
                bare.setdefault(row.mode, set()).add(row.rows)
        if all(row.bit_identical == 0 for row in own):
            yield "note", f"{variant}: no bit_identical rule applies to any step of it"
        elif bare:
            where = ", ".join(f"{mode} of {_rows(rows)} rows" for mode, rows in bare.items())
            yield "note", f"{variant}: no bit_identical rule applies to {where}"


def _rows(counts: Collection[int]) -> str:
    """`1/2/8`; of many, from which to which."""
    ordered = sorted(counts)
    if len(ordered) <= MAX_COUNTS:
        return "/".join(map(str, ordered))
    return f"{ordered[0]} to {ordered[-1]}"
