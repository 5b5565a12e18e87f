"""Which terms boots speak for: of a family, of a version of the engine, on a class of devices.

A term that no version changed is held by any boot of its family; one that a version changed, by the
boots of a version that has it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from metpipe.memory.met.versions import Version, version
from metpipe.memory.report import Status

__all__ = ["BOOTED_CLASS", "BOOTS", "Boots", "evidence", "other_booted"]

BOOTED_CLASS = "gb10"
"""The class of every boot that is known."""


@dataclass(frozen=True, slots=True)
class Boots:
    """What met's boots of a family were, and the versions of the engine that they ran."""

    what: str
    versions: tuple[int, ...]


BOOTS: Mapping[str, Boots] = {
    "qwen3_5": Boots("boots of the 27B on gb10", (1, 2)),
    "qwen3_6_moe": Boots("boots of the 35B-A3B on gb10", (2,)),
    "nemotron_h": Boots("the total of a boot of Nemotron-3-Nano on gb10", (2,)),
}
"""Family -> what was held against the terms: ledgers line by line, of Nemotron-3-Nano the total."""


@lru_cache(maxsize=1024)
def evidence(
    term: str, arch: str, engine: Version, device_class: str, *, experts: bool
) -> tuple[Status, str]:
    """The status of a term, and the line of its source that says why.

    `experts`: the model has routed ones.
    """
    boots = BOOTS.get(arch)
    if boots is None:
        return "uncalibrated", f"no boot of {arch} is known"
    if other_booted(term, arch, engine, experts=experts) is not None:
        numbers = " and ".join(map(str, boots.versions))
        return "uncalibrated", (
            f"held against {boots.what} with version {numbers}, and version {engine.number} has "
            "it another way"
        )
    if device_class != BOOTED_CLASS:
        return "uncalibrated", f"held against {boots.what}, and on no {device_class}"
    return "calibrated", f"held against {boots.what}"


def other_booted(term: str, arch: str, engine: Version, *, experts: bool) -> Version | None:
    """The newest booted version of a family, where no booted one has the term as `engine` has it.

    None where one has, and for a family without boots.
    """
    booted = [version(number) for number in BOOTS[arch].versions] if arch in BOOTS else []
    facts = {one.number: _facts(term, one, experts=experts) for one in booted}
    if not booted or _facts(term, engine, experts=experts) in facts.values():
        return None
    return booted[-1]


def _facts(term: str, engine: Version, *, experts: bool) -> object:
    """What of a version the term hangs on."""
    if term == "arena":
        return engine.expert_element_bytes if experts else None
    return engine.copies if term == "copies" else None
