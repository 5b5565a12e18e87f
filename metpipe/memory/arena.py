"""The size of an activation arena without its places: one number, equal to the layout's total.

A layout places each edge by first fit (lowest free offset, 256-byte aligned), larger ones first
among those that start at the same group. Layers repeat, so the same few situations come back: a
step's outcome is remembered by (what lives, what starts), and a deep model costs about as much as
two layers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from metpipe.circuit.layout import ALIGNMENT

__all__ = ["FOREVER", "Birth", "Lifetimes", "arena_bytes"]

FOREVER = -1
"""Lives to the end of the plan."""

Busy = tuple[int, int, int]
"""A placed edge: offset, end, groups that it still lives after this one."""


@dataclass(frozen=True, slots=True)
class Birth:
    """An edge that starts at a group: the index of its size, how many groups it outlives.

    `groups_left` 0 dies with the group where it starts.
    """

    size: int
    groups_left: int


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """A plan's live ranges: per group the index of what starts there, in the edges' order."""

    groups: tuple[int, ...]
    births: tuple[tuple[Birth, ...], ...]


def arena_bytes(lifetimes: Lifetimes, sizes: Sequence[int]) -> int:
    """The highest end of any edge, with `sizes[birth.size]` bytes for each birth."""
    numbers: dict[tuple[Busy, ...], int] = {(): 0}
    alive: list[tuple[Busy, ...]] = [()]
    seen: dict[int, int] = {}  # situation x kinds of group + group -> the next situation
    situation, highest, kinds = 0, 0, len(lifetimes.births)
    for group in lifetimes.groups:
        key = situation * kinds + group
        if key not in seen:
            after, top = _step(alive[situation], lifetimes.births[group], sizes)
            highest = max(highest, top)
            seen[key] = numbers.setdefault(after, len(alive))
            if seen[key] == len(alive):
                alive.append(after)
        situation = seen[key]
    return highest


def _step(
    busy: tuple[Busy, ...], births: tuple[Birth, ...], sizes: Sequence[int]
) -> tuple[tuple[Busy, ...], int]:
    """What lives after the group, and the highest end of what started in it."""
    placed, highest = list(busy), 0
    for size, birth in _larger_first(births, sizes):
        offset = _first_fit(placed, size)
        insort(placed, (offset, offset + size, birth.groups_left))
        highest = max(highest, offset + size)
    # FOREVER is below zero and stays as it is.
    aged = [(begin, end, left - (left > 0)) for begin, end, left in placed if left]
    return tuple(aged), highest


def _larger_first(births: tuple[Birth, ...], sizes: Sequence[int]) -> list[tuple[int, Birth]]:
    """Births with their sizes; equal ones stay in the edges' order."""
    sized = [(sizes[birth.size], birth) for birth in births]
    if len(sized) > 1:
        sized.sort(key=itemgetter(0), reverse=True)
    return sized


def _first_fit(placed: Sequence[Busy], size: int) -> int:
    offset = 0
    for begin, end, _ in placed:
        if offset + size <= begin:
            break
        aligned = -(-end // ALIGNMENT) * ALIGNMENT
        if aligned > offset:
            offset = aligned
    return offset
