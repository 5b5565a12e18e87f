"""The size of an activation arena without its places: one number, equal to the layout's total.

A layout places each edge by first fit (lowest free offset, 256-byte aligned), larger ones first
among those that start at the same group. Layers repeat, so the same few situations come back: a
step's outcome is remembered by (what lives, what starts), and a deep model costs about as much as
two layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metpipe.circuit.layout import ALIGNMENT

__all__ = ["Birth", "Lifetimes", "arena_bytes"]

Busy = tuple[int, int, int | None]
"""A placed edge: offset, end, groups that it still lives after this one (None: to the end)."""


@dataclass(frozen=True, slots=True)
class Birth:
    """An edge that starts at a group: the index of its size, how many groups it outlives.

    `groups_left` 0 dies with the group where it starts; None lives to the end of the plan.
    """

    size: int
    groups_left: int | None


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """A plan's live ranges: per group the index of what starts there, in the edges' order."""

    groups: tuple[int, ...]
    births: tuple[tuple[Birth, ...], ...]


def arena_bytes(lifetimes: Lifetimes, sizes: Sequence[int]) -> int:
    """The highest end of any edge, with `sizes[birth.size]` bytes for each birth."""
    states: dict[tuple[Busy, ...], int] = {(): 0}
    alive: list[tuple[Busy, ...]] = [()]
    seen: dict[tuple[int, int], int] = {}
    state, highest = 0, 0
    for group in lifetimes.groups:
        following = seen.get((state, group))
        if following is None:
            after, top = _step(alive[state], lifetimes.births[group], sizes)
            highest = max(highest, top)
            following = states.setdefault(after, len(alive))
            if following == len(alive):
                alive.append(after)
            seen[state, group] = following
        state = following
    return highest


def _step(
    busy: tuple[Busy, ...], births: tuple[Birth, ...], sizes: Sequence[int]
) -> tuple[tuple[Busy, ...], int]:
    """What lives after the group, and the highest end of what started in it."""
    placed, highest = list(busy), 0
    for birth in sorted(births, key=lambda birth: -sizes[birth.size]):
        offset = _first_fit(placed, sizes[birth.size])
        end = offset + sizes[birth.size]
        placed.append((offset, end, birth.groups_left))
        placed.sort(key=lambda item: item[:2])
        highest = max(highest, end)
    return tuple(_aged(placed)), highest


def _first_fit(placed: Sequence[Busy], size: int) -> int:
    offset = 0
    for begin, end, _ in placed:
        if offset + size <= begin:
            break
        offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
    return offset


def _aged(placed: Sequence[Busy]) -> list[Busy]:
    return [
        (begin, end, left if left is None else left - 1) for begin, end, left in placed if left != 0
    ]
