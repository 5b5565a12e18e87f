"""One line a control: whether the evidence beside the comparisons counts."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from metpipe.report.diff_section import DiffSection

__all__ = ["control_lines", "controls"]

STYLES = {"ok": "green", "FAILED": "bold red", "BLIND": "bold yellow", "note": "cyan"}
WORDS = {
    "ok": "ok",
    "blind": "BLIND",
    "late": "BLIND",
    "early": "FAILED",
    "other_row": "FAILED",
    "not_repeatable": "FAILED",
}
"""What a control found -> the word in front of its line."""


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
    for control in diff.controls:
        yield WORDS[control.verdict], control.sentence
    yield from _self_test(diff)
    yield from _unowned(diff)
    for pair in diff.vacuous:
        yield ("note" if pair.allowed else "BLIND", pair.sentence)
    for sentence in diff.unexercised:
        yield ("BLIND", sentence)
    yield from _coverage(diff)


def _repeats(diff: DiffSection) -> Iterator[tuple[str, str]]:
    """One line for all repeats that are equal, and one for each that is not."""
    equal = [repeat for repeat in diff.repeat if repeat.verdict == "ok"]
    if equal:
        names = ", ".join(dict.fromkeys(repeat.variant for repeat in equal))
        yield "ok", f"{names}: equal to the reference in {len(equal)} of {len(diff.repeat)} runs"
    for repeat in diff.repeat:
        if repeat not in equal:
            yield WORDS[repeat.verdict], repeat.sentence


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
    bare: dict[str, dict[str, list[str]]] = {}
    for row in diff.coverage:
        if row.bit_identical == 0:
            bare.setdefault(row.variant, {}).setdefault(row.mode, []).append(str(row.rows))
    for variant, modes in bare.items():
        where = ", ".join(f"{mode} of {'/'.join(rows)} rows" for mode, rows in modes.items())
        yield "note", f"{variant}: no bit_identical rule applies to {where}"
