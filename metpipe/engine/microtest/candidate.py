"""A rule to be tried, and what it is tried against: the built-in set's reference rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from metpipe.circuit import Rule, RuleSet, Select, Situation, UnknownRule
from metpipe.engine.kernel_set import KernelSet
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.program import Launch

__all__ = ["Candidate", "candidate_of"]

Kernels = Mapping[str, Callable[..., Launch]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rule of the built-in set or of the user's folder."""

    rule: Rule
    rules: RuleSet
    """the built-in rules and this one"""
    builtin_rules: RuleSet
    kernels: Kernels
    builtin: KernelSet
    is_builtin: bool

    @property
    def device(self) -> torch.device:
        """Where both sides compute."""
        return torch.device(self.builtin.hardware.kind)

    @property
    def is_definition(self) -> bool:
        """Whether the rule is itself the reference. Legacy runs no rule of a user: it never is."""
        return self.is_builtin and self.rule.numerics.kind == "reference"

    def situation(self, mode: str, rows: int) -> Situation:
        """For the plan that holds the rule, with its lever on."""
        lever = self.rule.numerics.lever
        return Situation(
            mode=mode,
            rows=rows,
            kernels=frozenset(self.kernels),
            capabilities=self.builtin.capabilities,
            settings=self.builtin.settings,
            levers=frozenset([lever] if lever else []),
            select=Select.only([self.rule.id]),
        )

    def reference_situation(self, mode: str, rows: int) -> Situation:
        """For the plan of one kernel per op."""
        return Situation(
            mode=mode,
            rows=rows,
            kernels=frozenset(self.builtin.functions),
            capabilities=self.builtin.capabilities,
            settings=self.builtin.settings,
            select=Select.reference(),
        )


def candidate_of(sets: KernelSets, rule_id: str) -> Candidate:
    """The rule of that id; the user's where both sets have one.

    Raises:
        UnknownRule: neither has it; names the nearest ids.
    """
    theirs = sets.overlay_rules.rules if sets.overlay_rules else {}
    known = {**sets.rules.rules, **theirs}
    if rule_id not in known:
        raise _unknown(sets, rule_id, sorted(known))
    rule = known[rule_id]
    return Candidate(
        rule=rule,
        rules=sets.rules.overlay(RuleSet(rule.source, {rule.id: rule})),
        builtin_rules=sets.rules,
        kernels=sets.functions_for(overlay=True),
        builtin=sets.builtin,
        is_builtin=rule_id not in theirs,
    )


def _unknown(sets: KernelSets, rule_id: str, known: list[str]) -> UnknownRule:
    files = sets.rules.source
    if sets.overlay_rules:
        files += f" or {sets.overlay_rules.source}"
    near = get_close_matches(rule_id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownRule(
        f"rule={rule_id}: no rule of {files} is named so; {hint}The rules are {', '.join(known)}"
    )
