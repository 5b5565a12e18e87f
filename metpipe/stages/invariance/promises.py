"""What a kernel set promises of the same row on two ways (INVARIANCE.toml)."""

from __future__ import annotations

from metpipe.circuit.strict import read_toml
from metpipe.engine.kernel_sets import KernelSets

__all__ = ["promised_axes"]

FILE = "INVARIANCE.toml"


def promised_axes(sets: KernelSets, arch: str, *, overlay: bool) -> frozenset[str]:
    """The axes that hold bit for bit; a user's folder may take the built-in set's back."""
    held = dict(_stated(sets.builtin.texts[FILE], str(sets.builtin.folder / FILE), arch))
    if overlay and sets.overlay is not None:
        held |= _stated(sets.overlay.texts[FILE], str(sets.overlay.folder / FILE), arch)
    return frozenset(axis for axis, bitwise in held.items() if bitwise)


def _stated(text: str, source: str, arch: str) -> dict[str, bool]:
    """Axis -> whether it is promised, for one family."""
    found = {}
    with read_toml(text, source) as root:
        root.schema(1)
        for promise in root.tables("promise"):
            with promise:
                bitwise, axis = promise.boolean("bitwise"), promise.text("axis")
                for key in ("text", "why"):
                    promise.text(key)
                if promise.text("arch") == arch:
                    found[axis] = bitwise
    return found
