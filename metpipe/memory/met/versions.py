"""What changed in met's engine between the boots that are known (sections 8.3 and 15.1).

An old boot is judged by the facts of its day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError

__all__ = ["NEWEST", "VERSIONS", "Version", "version"]


@dataclass(frozen=True, slots=True)
class Version:
    """One state of the engine.

    `copies` is its file of copy rules under kernels/circuits, `expert_element_bytes` what an
    element of the routed experts' gate and up buffers takes in the arena.
    """

    number: int
    copies: str
    expert_element_bytes: int
    what: str


VERSIONS: Mapping[int, Version] = {
    1: Version(1, "COPIES.1.toml", 2, "three copies of the dense hybrid leak"),
    2: Version(2, "COPIES.toml", 2, "the leaks are gone"),
    3: Version(3, "COPIES.toml", 4, "experts' gate and up in four bytes, since 2026-10-05"),
}
NEWEST = max(VERSIONS)


def version(number: int) -> Version:
    """The version of this number.

    Raises:
        ConfigError: there is none.
    """
    if number not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise ConfigError(f"memory.met_version={number}: no such version; there are {known}")
    return VERSIONS[number]
