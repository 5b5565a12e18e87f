"""Hydra's and OmegaConf's errors as a few plain lines: what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from metpipe.config import nearest_key

__all__ = ["text"]


def text(error: Exception) -> str:
    """The error's own message, reworded where Hydra's is meant for programmers."""
    message = str(error)
    for pattern, reworded in REWORDED:
        if match := re.search(pattern, message):
            return reworded(match, message)
    return "\n".join(_without_noise(message.splitlines()))


def _unknown_choice(match: re.Match[str], message: str) -> str:
    group, _, choice = match["name"].rpartition("/")
    listed = message.partition("Available options in")[2].partition("Config search path")[0]
    choices = [line.strip() for line in listed.splitlines()[1:] if line.strip()]
    lines = [f"{group}={choice}: there is no such choice"]
    if near := get_close_matches(choice, choices, n=1):
        lines.append(f"    did you mean {group}={near[0]}?")
    return "\n".join([*lines, f"    choices of {group}: {', '.join(choices)}"])


def _unknown_key(match: re.Match[str], _: str) -> str:
    key = match["key"]
    hint = (
        f"did you mean {near}?" if (near := nearest_key(key)) else "metpipe --help lists the keys"
    )
    return f"{key}: there is no such key\n    set by an override of {key!r}\n    {hint}"


def _unset(match: re.Match[str], _: str) -> str:
    return f"{match['key']}: must be given, and neither a choice nor an override does"


def _without_noise(lines: Iterable[str]) -> list[str]:
    noise = ("full_key:", "object_type=", "Set the environment variable", "reference_type=")
    return [line.rstrip() for line in lines if line.strip() and not line.strip().startswith(noise)]


Reworded = Callable[[re.Match[str], str], str]
REWORDED: tuple[tuple[str, Reworded], ...] = (
    (r"Could not find '(?P<name>[^']+)'", _unknown_choice),
    (r"Could not override '(?P<key>[^']+)'", _unknown_key),
    (r"Missing mandatory value: (?P<key>\S+)", _unset),
)
