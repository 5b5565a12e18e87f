"""Validation, and errors that name the key, the value, and the override or file that set it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from metpipe.config.modes import settled
from metpipe.config.rules import problems
from metpipe.config.run import Run
from metpipe.errors import ConfigError
from metpipe.wording import sentence

__all__ = ["Provenance", "nearest_key", "validate", "with_source"]


FILES = ("model.checkpoint", "kernels", "prompts", "resume")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who set what: overrides in order, as (dotted key, text as typed), and the group choices.

    `origins`: the text of an override that stood in no argument -> what it came from.
    `filled`: a key that a group's choice sets outside the group's own table -> the group.
    """

    overrides: tuple[tuple[str, str], ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    filled: Mapping[str, str] = field(default_factory=dict)

    def source(self, key: str) -> str:
        """Who set `key`: the last override of it, else its group's file, else config.yaml."""
        for target, line in reversed(self.overrides):
            if target not in self.choices and _related(key, target):
                return self._override(line)
        for group, choice in self.choices.items():
            if _related(key, group.replace("/", ".")):
                return self._choice(group, choice)
        for filled, group in self.filled.items():
            if _related(key, filled):
                return self._choice(group, self.choices[group])
        if _related(key, "variants") and "variant" in self.choices:
            return self._choice("variant", self.choices["variant"])
        return "conf/config.yaml"

    @property
    def typed(self) -> frozenset[str]:
        """Keys of overrides that stood on the command line, in no file."""
        return frozenset(key for key, line in self.overrides if line not in self.origins)

    def _choice(self, group: str, choice: str) -> str:
        typed = next((line for key, line in reversed(self.overrides) if key == group), None)
        file = f"conf/{group}/{choice}.yaml"
        return f"{file} ({self._override(typed)})" if typed else file

    def _override(self, line: str) -> str:
        origin = self.origins.get(line)
        return f"the override {line!r} of {origin}" if origin else f"the override {line!r}"


def validate(plain: Mapping[str, Any], provenance: Provenance) -> Run:
    """The run behind a composed config, with its mode settled.

    Raises:
        ConfigError: one or two lines for each thing that is wrong.
    """
    try:
        run = settled(Run.model_validate(plain))
    except ValidationError as error:
        raise ConfigError(_explain(error, plain, provenance)) from None
    wrong = list(problems(run, {key for key, _ in provenance.overrides}))
    if wrong:
        lines = [f"{p.key}: {p.message}\n    set by {provenance.source(p.key)}" for p in wrong]
        raise ConfigError("\n".join(lines))
    return run


def with_source(message: str, provenance: Provenance) -> str:
    """A message that starts with a key, or with a file that a key names, and who set that key."""
    start = re.match(r"([a-z_]+(?:\.\w+)*)[=:]", message)
    known = start is not None and start[1].partition(".")[0] in Run.model_fields
    key = start[1] if start is not None and known else _key_of_file(message, provenance)
    if key is None or "\n    set by " in message:
        return message
    return f"{message}\n    set by {provenance.source(key)}"


def _key_of_file(message: str, provenance: Provenance) -> str | None:
    """The key whose override names the file or folder that the message starts with."""
    for key, line in reversed(provenance.overrides):
        given = line.partition("=")[2].strip("'\"")
        if key in FILES and given:
            path = Path(given).expanduser()
            if message.startswith((given, str(path), str(path.resolve()))):
                return key
    return None


def _explain(error: ValidationError, plain: Mapping[str, Any], provenance: Provenance) -> str:
    return "\n".join(line for item in error.errors() for line in _lines(item, plain, provenance))


def _lines(item: ErrorDetails, plain: Mapping[str, Any], provenance: Provenance) -> Iterator[str]:
    key = ".".join(_typed(item["loc"], plain)) or "(the whole config)"
    yield f"{key}: {sentence(item)}"
    yield f"    set by {provenance.source(key)}"
    if item["type"] == "extra_forbidden" and (near := nearest_key(key)):
        yield f"    did you mean {near}?"


def _typed(loc: Iterable[int | str], plain: object) -> Iterator[str]:
    """The parts of a key as they were typed: a number that stands for a list has no place in it."""
    for part in loc:
        if isinstance(part, int) and not isinstance(plain, list | tuple):
            return
        yield str(part)
        if isinstance(plain, Mapping):
            plain = plain.get(part)
        elif isinstance(plain, list | tuple) and isinstance(part, int):
            plain = plain[part]


def nearest_key(key: str) -> str | None:
    """The known dotted key most like the unknown `key`, which may be wrong in its last part."""
    *parents, last = key.split(".")
    model: Any = Run
    for part in parents:
        known = getattr(model, "model_fields", {}).get(part)
        model = known.annotation if known else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    found = get_close_matches(last, model.model_fields, n=1)
    return ".".join([*parents, *found]) if found else None


def _related(a: str, b: str) -> bool:
    """Whether one dotted key is the other or holds it."""
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")
