"""Numbers of a config.json as the hand-written forwards read them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["config_float", "config_int"]

Config = Mapping[str, object]


def config_int(config: Config, key: str, default: int | None = None) -> int:
    """The key's value; where it is absent or null the default. KeyError where there is none."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise KeyError(key)
        return default
    return int(str(value))


def config_float(config: Config, key: str, default: float) -> float:
    """The key's value; where it is absent or null the default."""
    value = config.get(key)
    return default if value is None else float(str(value))
