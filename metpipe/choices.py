"""Choices that Hydra would merge without a word, or choke on, refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString

from metpipe.errors import ConfigError

__all__ = ["check_choices"]

ONE = ("model", "hardware", "serve", "pipeline", "diff")
"""Groups of which a run has one choice; a list of them would be laid over each other."""
LISTS = ("variant",)


def check_choices(argv: Sequence[str], origins: Mapping[str, str]) -> None:
    """Refuse an override without a key, and a group's choice that is not the name of one.

    Raises:
        ConfigError: naming the override. HydraException: an override that cannot be read.
    """
    lines = [arg for arg in argv if not arg.startswith("-")]
    for override in OverridesParser.create().parse_overrides(lines):
        said = f"{override.input_line}{_of(origins, override)}"
        if not override.key_or_group:
            raise ConfigError(f"{said}: there is no key before the =; write KEY=VALUE")
        for value in _values(override):
            _check(override.key_or_group, value, said)


def _of(origins: Mapping[str, str], override: Override) -> str:
    origin = origins.get(str(override.input_line))
    return f" of {origin}" if origin else ""


def _check(group: str, value: object, said: str) -> None:
    if group == "variants" and not isinstance(value, dict):
        raise ConfigError(
            f"{said}: must be a table of variants; variant=[NAME,NAME] chooses from the pool"
        )
    if group in (*ONE, *LISTS) and "" in (value if isinstance(value, list) else [value]):
        raise ConfigError(
            f"{said}: there is no choice behind the =; write one, or leave {group} out (metpipe "
            "--help lists them)"
        )
    if group in ONE and isinstance(value, list):
        raise ConfigError(f"{said}: takes one choice; {group}=A,B with -m in front runs each")
    if group in (*ONE, *LISTS) and isinstance(value, bool | int | float | None):
        raise ConfigError(f"{said}: takes the name of a choice; metpipe --help lists them")


def _values(override: Override) -> Iterator[object]:
    """The value of a run, or of each run of a sweep; a deletion has none."""
    if override.is_delete():
        return
    value = override._value
    listed = value.list if isinstance(value, ChoiceSweep) else [value]
    for item in listed:
        yield item.text if isinstance(item, QuotedString) else item
