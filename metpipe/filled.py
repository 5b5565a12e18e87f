"""Which keys a group's choice sets outside the group's own table, as a diff's sets its lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

__all__ = ["filled_keys"]

GLOBAL = "# @package _global_"
"""The first line of a choice that stands at the root of the config."""


def filled_keys(choices: Mapping[str, str], folders: Sequence[Path]) -> dict[str, str]:
    """Key -> the group whose choice sets it; `folders` hold the groups, the first wins."""
    found: dict[str, str] = {}
    for group, choice in choices.items():
        path = next((p for f in folders if (p := f / group / f"{choice}.yaml").is_file()), None)
        if path is not None:
            found |= dict.fromkeys(_keys(path), group)
    return found


def _keys(path: Path) -> Iterator[str]:
    """The keys that a file sets at the root; Hydra has read it, so it is no broken one."""
    if path.read_text(encoding="utf-8").startswith(GLOBAL):
        yield from (str(key) for key in OmegaConf.load(path) if key != "defaults")
