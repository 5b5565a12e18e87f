"""Hydra's and OmegaConf's errors as a few plain lines: what, where it was set, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from metpipe import launchers
from metpipe.config import nearest_key
from metpipe.resources import conf_dir

__all__ = ["Typed", "text", "unwritable"]


@dataclass(frozen=True, slots=True)
class Typed:
    """The overrides of a command line, and of those that stood in no argument: where from."""

    lines: Sequence[str] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """The last override of `key`, quoted."""
        for line in reversed(self.lines):
            if re.split("[=@]", line.lstrip("+~"), maxsplit=1)[0].replace("/", ".") == key:
                return f"the override {line!r}{self.origin(line)}"
        return f"an override of {key!r}"

    def origin(self, line: str) -> str:
        """` of recipe=FILE` for a line of a recipe, else nothing."""
        return f" of {self.origins[line]}" if line in self.origins else ""


def text(error: Exception, typed: Typed | None = None) -> str:
    """The error's own message, reworded where Hydra's is meant for programmers."""
    message, typed = str(error), typed or Typed()
    for pattern, reworded in REWORDED:
        if match := re.search(pattern, message, re.DOTALL):
            return reworded(match, typed)
    if (override := getattr(error, "override", None)) is not None:
        return _unreadable(override, message, typed)
    said = "\n".join(_without_noise(message.splitlines()))
    key = re.search(r"full_key: (\S+)", message)
    return f"{key[1]}: {said}" if key else said


def unwritable(error: OSError) -> str:
    """Hydra could not make the run's folder, or there is no folder to make it in."""
    where = error.filename or "the current folder"
    return (
        f"{where}: can't be used ({error.strerror or error}), and each run makes a folder of its "
        "own; run where you may write, or set hydra.run.dir=FOLDER (a sweep's: hydra.sweep.dir)"
    )


def _unknown_choice(match: re.Match[str], typed: Typed) -> str:
    group, _, choice = match["name"].rpartition("/")
    if group == "hydra/launcher":
        return launchers.needs(choice) or _unknown_launcher(choice)
    choices = sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))
    near = " or ".join(f"{group}={name}" for name in _near(choice.lower(), choices))
    hint = f"; did you mean {near}?" if near else ""
    said = f"{group}={choice}: there is no such choice{hint}"
    if any(typed.origin(line) for line in typed.lines if line.startswith(f"{group}=")):
        said += f"\n    set by {typed.source(group)}"
    return f"{said}\n    choices of {group}: {', '.join(choices)}"


def _unknown_launcher(choice: str) -> str:
    known = ", ".join(["basic", *launchers.PACKAGES])
    return f"hydra/launcher={choice}: there is no such launcher\n    launchers: {known}"


def _near(choice: str, choices: Sequence[str]) -> Sequence[str]:
    """Those that begin as `choice` does; h200 is h200_sxm, though b200 has fewer other letters."""
    begun = [name for name in choices if name.startswith(choice)] if choice else []
    return begun or get_close_matches(choice, choices, n=1)


FACTS = ("hardware.memory_bytes", "hardware.sm_count")
"""Keys that no choice has and that may be added to one."""


def _unknown_key(match: re.Match[str], typed: Typed) -> str:
    key = match["key"]
    near = nearest_key(key)
    hint = f"did you mean {near}?" if near else "metpipe --help lists the keys"
    if key in FACTS:
        hint = f"a fact in place of the registry's is added with a plus: +{key}=N"
    return f"{key}: there is no such key\n    set by {typed.source(key)}\n    {hint}"


def _unset(match: re.Match[str], _: Typed) -> str:
    return f"{match['key']}: must be given, and neither a choice nor an override does"


def _nowhere(match: re.Match[str], _: Typed) -> str:
    key, target = match["key"], match["target"]
    return (
        f"{key}: refers to ${{{target}}}, and there is no such key; write a value, or the dotted "
        "name of a key that is there"
    )


def _there_already(match: re.Match[str], typed: Typed) -> str:
    key = match["key"]
    return (
        f"{key}: is a key already, and a plus adds a new one; leave the plus out\n"
        f"    set by {typed.source(key)}"
    )


def _no_variable(match: re.Match[str], typed: Typed) -> str:
    key, name = match["key"], match["name"]
    return (
        f"{key}: refers to the environment variable {name}, which is not set; set it, or give a "
        f"value for that case: ${{oc.env:{name},VALUE}}\n    set by {typed.source(key)}"
    )


def _no_config(match: re.Match[str], _: Typed) -> str:
    return (
        f"--config-name {match['name']}: there is no such config; leave the option out (a file of "
        "overrides is a recipe: recipe=FILE)"
    )


def _no_config_dir(match: re.Match[str], _: Typed) -> str:
    return f"--config-dir {match['name']}: there is no such folder; give one, or leave it out"


def _unmergeable(match: re.Match[str], typed: Typed) -> str:
    line = match["line"]
    return (
        f"{line}{typed.origin(line)}: the key takes no such value; leave it out, or set one of "
        "those that metpipe --cfg hydra shows"
    )


def _two_values(match: re.Match[str], typed: Typed) -> str:
    line = match["line"]
    key, _, values = line.partition("=")
    return (
        f"{line}{typed.origin(line)}: several values for one run; write {key}=[{values}] for a "
        f"list, quote it for a text, or put -m in front for a sweep over them"
    )


def _unreadable(override: str, message: str, typed: Typed) -> str:
    why = next(iter(_without_noise(message.splitlines())), "").partition(" expecting ")[0]
    return (
        f"{override}{typed.origin(override)}: not an override that can be read ({why})\n"
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


Reworded = Callable[[re.Match[str], Typed], str]
REWORDED: tuple[tuple[str, Reworded], ...] = (
    (r"Could not (?:find|load) '(?P<name>[^'/]+/[^']+)'", _unknown_choice),
    (r"Could not override '(?P<key>[^']+)'", _unknown_key),
    (r"Missing mandatory value:.*full_key: (?P<key>\S+)", _unset),
    (r"Interpolation key '(?P<target>[^']+)' not found.*full_key: (?P<key>\S+)", _nowhere),
    (r"An item is already at '(?P<key>[^']+)'", _there_already),
    (r"Environment variable '(?P<name>[^']+)' not found.*full_key: (?P<key>\S+)", _no_variable),
    (r"Cannot find primary config '(?P<name>[^']+)'", _no_config),
    (r"Additional config directory '(?P<name>[^']+)' not found", _no_config_dir),
    (r"Error merging override (?P<line>[^\n]+)", _unmergeable),
    (r"Ambiguous value for argument '(?P<line>[^\n]+)'", _two_values),
)
