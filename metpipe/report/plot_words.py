"""The words of a sweep's plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from metpipe.nouns import number_of
from metpipe.report.sweep_axes import CONCURRENCY, ISL, Axis, fixed
from metpipe.report.sweep_record import JobRow

__all__ = ["headline", "subtitle", "value_label"]

TOLD = ("pipeline", "model", "hardware", "memory.accounting")
"""Overrides that the heading already says, or that say nothing of the plan."""
LETTER_IN = 0.063
SHORT = {ISL: "prompt tokens", CONCURRENCY: "at once", "workload.osl": "generated"}


def value_label(key: str, value: str, *, short: bool = False) -> str:
    """A value of an axis as people read it; not `short`: with what it counts."""
    number = f"{int(value):,}" if value.isdigit() else value
    if short:
        return number
    return f"{number} {SHORT[key]}" if key in SHORT else f"{key}={number}"


def headline(jobs: Sequence[JobRow], axes: Sequence[Axis], what_for: str) -> str:
    """What was planned, for what."""
    swept = {axis.key for axis in axes}
    models = list(dict.fromkeys(job.model for job in jobs if job.model))
    devices = list(dict.fromkeys(job.memory.device for job in jobs if job.memory))
    what = models[0] if len(models) == 1 and "model" not in swept else f"{len(models)} models"
    where = devices[0] if len(devices) == 1 else f"{len(devices)} devices"
    return f"{what} on {where}: {what_for}"


def subtitle(jobs: Sequence[JobRow], width: float) -> list[str]:
    """What all jobs have alike, and what was decided on the experts' tables, folded to `width`."""
    alike = [f"{key}={value}" for key, value in fixed(jobs).items() if key not in TOLD]
    accountings = list(dict.fromkeys(job.memory.accounting for job in jobs if job.memory))
    said = [f"counted: the allocations of {' and '.join(accountings)}'s engine", *alike]
    if any(job.memory.ranks > 1 for job in jobs if job.memory):
        said.insert(1, "of the fullest rank")
    return [*_folded("  ·  ".join(said), width), *_tables(jobs)]


def _tables(jobs: Sequence[JobRow]) -> list[str]:
    found = [job.memory.expert_tables for job in jobs if job.memory and job.memory.expert_tables]
    decided = Counter(found)
    if len(decided) > 1:
        each = [f"{number_of(number, 'job')} {what}" for what, number in decided.items()]
        return [f"expert tables: {'; '.join(each)}"]
    return [f"expert tables: {what}" for what in decided]


def _folded(text: str, width: float) -> list[str]:
    return wrap(text, int((width - 0.3) / LETTER_IN), break_long_words=False)
