"""Which axes the kernel sets of a forward promise to hold bit for bit, and of which legs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from metpipe.engine.kernel_set import KernelSet
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.promises import Promise, parse_promises
from metpipe.stages.invariance.table import Planned

__all__ = ["is_promised", "promised_axes"]

FILE = "INVARIANCE.toml"
Key = tuple[str, str | None]
"""Axis, lever."""


def promised_axes(
    sets: KernelSets, arch: str, *, overlay: bool, levers: Collection[str]
) -> Mapping[str, int]:
    """The axes that hold bit for bit -> of how many tokens a prefill's passes are multiples.

    All must hold that is said of an axis without a lever and behind each that is pulled. A user's
    folder may take the built-in set's back.
    """
    said = _stated(sets.builtin, arch)
    if overlay and sets.overlay is not None:
        said |= _stated(sets.overlay, arch)
    held: dict[str, int] = {}
    for axis in {axis for axis, _ in said}:
        heard = [said[key] for key in said if key[0] == axis and key[1] in (None, *levers)]
        if heard and all(promise.bitwise for promise in heard):
            held[axis] = math.lcm(*(promise.multiple_of for promise in heard))
    return held


def is_promised(axes: Mapping[str, int], leg: Planned) -> bool:
    """Whether a leg's axis is, and its passes are cut where that holds."""
    case, multiple = leg.case, axes.get(leg.axis)
    if multiple is None:
        return False
    return (case.chunk or 0) % multiple == 0 and case.restored % multiple == 0


def _stated(kernels: KernelSet, arch: str) -> dict[Key, Promise]:
    """What one set says of one family."""
    promises = parse_promises(kernels.texts[FILE], str(kernels.folder / FILE))
    return {(promise.axis, promise.lever): promise for promise in promises if promise.arch == arch}
