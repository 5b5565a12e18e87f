"""What a plan is made for: mode, rows, what there is, what was asked; and the rules admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from metpipe.circuit.errors import MissingKernel, PolicyMissing, UnknownRule, ZeroRows
from metpipe.circuit.rules import Rule, RuleSet
from metpipe.circuit.runs import RowTable
from metpipe.circuit.vocabulary import MODES
from metpipe.errors import ConfigError

__all__ = ["Select", "Situation", "obstacle"]


@dataclass(frozen=True, slots=True)
class Select:
    """Which rules a variant admits, by class and id."""

    kind: Literal["reference", "all", "only", "without"]
    ids: frozenset[str] = frozenset()

    @classmethod
    def reference(cls) -> Select:
        """Only rules of class reference."""
        return cls("reference")

    @classmethod
    def all(cls) -> Select:
        """Every rule."""
        return cls("all")

    @classmethod
    def only(cls, ids: Iterable[str]) -> Select:
        """The reference rules and these."""
        return cls("only", frozenset(ids))

    @classmethod
    def without(cls, ids: Iterable[str]) -> Select:
        """Every rule but these."""
        return cls("without", frozenset(ids))

    def admits(self, rule: Rule) -> bool:
        """Whether a rule may be used."""
        match self.kind:
            case "reference":
                return rule.numerics.kind == "reference"
            case "all":
                return True
            case "only":
                return rule.numerics.kind == "reference" or rule.id in self.ids
        return rule.id not in self.ids


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is fused for."""

    mode: str
    rows: int
    kernels: frozenset[str]
    """`module.func` of every kernel there is"""
    capabilities: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    levers: frozenset[str] = frozenset()
    select: Select = field(default_factory=Select.all)
    table: RowTable | None = None
    """verify_batch only; rules that launch per run need it"""

    def arms(self, rules: RuleSet) -> tuple[Situation, ...]:
        """This situation, and the other arm of each runtime condition that may hold in it."""
        others = [
            replace(self, settings={**self.settings, **runtime.plans_as})
            for runtime in rules.runtimes.values()
            if self.mode in runtime.modes and runtime.rows[0] <= self.rows <= runtime.rows[1]
        ]
        return (self, *others)

    def check(self, rules: RuleSet) -> None:
        """Refuse a situation that the rule set cannot judge.

        Raises:
            ConfigError: of the kinds ZeroRows, PolicyMissing, UnknownRule, MissingKernel, or an
                unknown mode.
        """
        if self.mode not in MODES:
            raise ConfigError(f"no mode is named {self.mode!r}; the modes are {', '.join(MODES)}")
        if self.rows < 1:
            raise ZeroRows(f"a plan for {self.mode} needs at least one row, {self.rows} were asked")
        self._check_table()
        self._check_settings(rules)
        self._check_selection(rules)

    def _check_table(self) -> None:
        if self.table is None:
            return
        if self.mode != "verify_batch":
            raise ConfigError(f"mode {self.mode} has no row table; only verify_batch has")
        if self.table.rows != self.rows:
            raise ConfigError(
                f"the row table {self.table.text} has {self.table.rows} rows, not {self.rows}"
            )

    def _check_settings(self, rules: RuleSet) -> None:
        for rule in rules.rules.values():
            for name in rule.when:
                if name not in self.settings:
                    stated = ", ".join(sorted(self.settings)) or "none"
                    raise PolicyMissing(
                        f"{rule.source}, rule {rule.id}: it reads the setting {name!r}, which the "
                        f"run does not state (it states {stated}); state it, or drop the condition"
                    )

    def _check_selection(self, rules: RuleSet) -> None:
        for rule_id in sorted(self.select.ids):
            if rule_id not in rules.rules:
                raise UnknownRule(
                    f"no rule is named {rule_id!r} in {rules.source}; its rules are "
                    f"{', '.join(sorted(rules.rules))}"
                )
            absent = rules.rules[rule_id].kernel_names - self.kernels
            if self.select.kind == "only" and absent:
                raise MissingKernel(
                    f"the rule {rule_id!r} was asked for, and its kernel {min(absent)!r} is not in "
                    "the kernel set"
                )


def obstacle(rule: Rule, situation: Situation) -> str | None:
    """Why a rule does not apply at all; None when it may. Rows are judged chain by chain."""
    if not situation.select.admits(rule):
        return "it is not selected"
    if situation.mode not in rule.modes:
        return f"it is not for mode {situation.mode}"
    absent = rule.kernel_names - situation.kernels
    if absent:
        return f"its kernel {min(absent)} is absent"
    lacking = rule.requires - situation.capabilities
    if lacking:
        return f"the capability {min(lacking)} is missing"
    for name, value in rule.when.items():
        if situation.settings.get(name) != value:
            return f"{name} is {situation.settings.get(name)!r}, not {value!r}"
    if rule.numerics.lever is not None and rule.numerics.lever not in situation.levers:
        return f"its lever {rule.numerics.lever} is off"
    if rule.runs and situation.table is None:
        return "it runs per run, and there is no row table"
    if rule.runs and situation.table and not situation.table.covered_by(rule.runs):
        return f"no selector covers every run of {situation.table.text}"
    return None
