"""Hydra's and OmegaConf's errors as a few plain lines: what, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from metpipe.config import nearest_key
from metpipe.resources import conf_dir

__all__ = ["text"]


def text(error: Exception) -> str:
    """The error's own message, reworded where Hydra's is meant for programmers."""
    message = str(error)
    for pattern, reworded in REWORDED:
        if match := re.search(pattern, message, re.DOTALL):
            return reworded(match)
    if (override := getattr(error, "override", None)) is not None:
        return _unreadable(override, message)
    return "\n".join(_without_noise(message.splitlines()))


def _unknown_choice(match: re.Match[str]) -> str:
    group, _, choice = match["name"].rpartition("/")
    choices = sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))
    lines = [f"{group}={choice}: there is no such choice"]
    if near := get_close_matches(choice, choices, n=1):
        lines.append(f"    did you mean {group}={near[0]}?")
    return "\n".join([*lines, f"    choices of {group}: {', '.join(choices)}"])


def _unknown_key(match: re.Match[str]) -> str:
    key = match["key"]
    near = nearest_key(key)
    hint = f"did you mean {near}?" if near else "metpipe --help lists the keys"
    return f"{key}: there is no such key\n    set by an override of {key!r}\n    {hint}"


def _unset(match: re.Match[str]) -> str:
    return f"{match['key']}: must be given, and neither a choice nor an override does"


def _unreadable(override: str, message: str) -> str:
    why = next(iter(_without_noise(message.splitlines())), "")
    return (
        f"{override}: not an override that can be read ({why})\n"
        "    write KEY=VALUE; quote a value with odd characters: \"KEY='a value: so'\""
    )


def _without_noise(lines: Iterable[str]) -> list[str]:
    noise = (
        "See http",
        "Error parsing override",
        "full_key:",
        "object_type=",
        "reference_type=",
        "Set the environment variable",
    )
    return [line.rstrip() for line in lines if line.strip() and not line.strip().startswith(noise)]


REWORDED: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"Could not (?:find|load) '(?P<name>[^'/]+/[^']+)'", _unknown_choice),
    (r"Could not override '(?P<key>[^']+)'", _unknown_key),
    (r"Missing mandatory value:.*full_key: (?P<key>\S+)", _unset),
)
