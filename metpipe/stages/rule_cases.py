"""Trials of a rule, compared byte for byte and summed up.

A case is a kind of values at a row count, over every circuit and mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from metpipe.diff.bytewise import compare_bytes
from metpipe.diff.severity import Severity, measure, worst
from metpipe.engine.microtest import Pair, Trial
from metpipe.nouns import number_of
from metpipe.report.diff_section import Severity as Shown
from metpipe.report.rule_section import RuleCase

__all__ = ["Cases"]


@dataclass(slots=True)
class _Case:
    unequal_bytes: int = 0
    severities: list[Severity] = field(default_factory=list)

    def shown(self, values: str, rows: int) -> RuleCase:
        severity = worst(self.severities)
        return RuleCase(
            name=values,
            rows=rows,
            unequal_bytes=self.unequal_bytes,
            severity=None if severity is None else Shown(**asdict(severity)),
        )


@dataclass(slots=True)
class Cases:
    """What all trials of one rule showed."""

    trials: int = 0
    exercised_trials: int = 0
    """those in which the chain wrote a finite number other than 0 to every output"""
    faults: list[str] = field(default_factory=list)
    """what no class of rule may do, a sentence each, at most one of a kind and buffer"""
    differences: list[str] = field(default_factory=list)
    """where both sides' bytes differ"""
    parts: set[str] = field(default_factory=set)
    exercised_parts: set[str] = field(default_factory=set)
    _cases: dict[tuple[str, int], _Case] = field(default_factory=dict)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, trial: Trial) -> None:
        """Compare a trial's outputs; must be called before the next trial runs."""
        case = self._cases.setdefault((trial.values, trial.place.rows), _Case())
        for pair in trial.pairs:
            self._compare(trial, pair, case)
        self.trials += 1
        self.exercised_trials += all(pair.is_exercised for pair in trial.pairs)
        for kind, sentence in _faults(trial):
            if kind not in self._seen:
                self._seen.add(kind)
                self.faults.append(f"{sentence} ({_where(trial)})")

    def shown(self) -> tuple[RuleCase, ...]:
        """For the report, in the order of kinds, then rows."""
        order = list(dict.fromkeys(values for values, _ in self._cases))
        keys = sorted(self._cases, key=lambda key: (order.index(key[0]), key[1]))
        return tuple(self._cases[key].shown(*key) for key in keys)

    @property
    def num_cases(self) -> int:
        """Kinds of values times row counts."""
        return len(self._cases)

    @property
    def num_differing(self) -> int:
        """Cases with at least one unequal byte."""
        return sum(case.unequal_bytes > 0 for case in self._cases.values())

    @property
    def severity(self) -> Severity | None:
        """Over all cases."""
        return worst(severity for case in self._cases.values() for severity in case.severities)

    @property
    def unexercised(self) -> list[str]:
        """Outputs that were NaN, infinite or 0 in each trial: their equality says nothing."""
        return sorted(self.parts - self.exercised_parts)

    def _compare(self, trial: Trial, pair: Pair, case: _Case) -> None:
        self.parts.add(pair.part)
        if pair.is_exercised:
            self.exercised_parts.add(pair.part)
        found = compare_bytes(pair.chain, pair.rule)
        if found:
            return
        case.unequal_bytes += found.unequal
        severity = measure(pair.chain, pair.rule)
        if severity is not None:
            case.severities.append(severity)
        start = "" if found.first is None else f", first at byte {found.first}, row {found.rows[0]}"
        note = f" ({found.note})" if found.note else ""
        self.differences.append(
            f"{_where(trial)}: {pair.label} differs in {number_of(found.unequal, 'byte')}"
            f"{start}{note}"
        )


def _where(trial: Trial) -> str:
    return f"values {trial.values!r}, {trial.place.text}"


def _faults(trial: Trial) -> Iterator[tuple[tuple[str, str], str]]:
    """(kind and buffer, sentence) of everything that a kernel must not do."""
    for label, changed in trial.moved.items():
        yield ("moved", label), f"it changed {number_of(changed, 'byte')} {_of(label)}"
    for pair in trial.pairs:
        if pair.unwritten:
            left = f"it left {pair.unwritten} elements of {pair.label} unwritten"
            yield ("unwritten", pair.part), left
    for label in trial.unrepeated:
        yield ("unrepeated", label), f"a second launch wrote other bytes to {label}"


def _of(label: str) -> str:
    return label if label.startswith("around ") else f"of {label}, which it only reads"
