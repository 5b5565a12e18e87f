"""Which axes the kernel sets of a forward promise to hold bit for bit."""

from __future__ import annotations

from metpipe.engine.kernel_set import KernelSet
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.promises import parse_promises

__all__ = ["promised_axes"]

FILE = "INVARIANCE.toml"


def promised_axes(sets: KernelSets, arch: str, *, overlay: bool) -> frozenset[str]:
    """The axes that hold bit for bit; a user's folder may take the built-in set's back."""
    held = _stated(sets.builtin, arch)
    if overlay and sets.overlay is not None:
        held |= _stated(sets.overlay, arch)
    return frozenset(axis for axis, bitwise in held.items() if bitwise)


def _stated(kernels: KernelSet, arch: str) -> dict[str, bool]:
    """Axis -> whether it is promised, for one family."""
    promises = parse_promises(kernels.texts[FILE], str(kernels.folder / FILE))
    return {promise.axis: promise.bitwise for promise in promises if promise.arch == arch}
