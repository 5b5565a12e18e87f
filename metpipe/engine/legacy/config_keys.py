"""Keys of a config.json as the hand-written forwards read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.engine.legacy.class_defaults import Defaults
from metpipe.errors import ConfigError

__all__ = ["ConfigKeys"]


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """A config, and what its class takes where a key is absent or null."""

    config: Mapping[str, object]
    defaults: Defaults

    def integer(self, key: str) -> int:
        """A whole number."""
        return int(str(self._value(key)))

    def number(self, key: str) -> float:
        """A number."""
        return float(str(self._value(key)))

    def is_true(self, key: str) -> bool:
        """A yes or no."""
        return bool(self._value(key))

    def _value(self, key: str) -> object:
        value = self.config.get(key)
        if value is None:
            value = self.defaults.get(key)
        if value is None:
            raise ConfigError(
                f"the checkpoint's config.json: the key {key!r} is missing, and there is no "
                "default of it; add it"
            )
        return value
