"""The one module of the package that reads files: circuits, config maps and rule sets by folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from metpipe.circuit.config_reader import class_sizes
from metpipe.circuit.fusions_toml import parse_fusions
from metpipe.circuit.ir import Circuit
from metpipe.circuit.resolve import Library, Resolved, resolve_checkpoint
from metpipe.circuit.rules import RuleSet
from metpipe.errors import ConfigError

__all__ = [
    "circuit_from_config",
    "class_sizes_of",
    "read_library",
    "read_rules",
    "resolve_from_config",
]

Texts = tuple[tuple[str, str], ...]
"""(name, content) of files"""


def read_library(kernels: Path) -> Library:
    """Read every architecture under `kernels`/circuits; texts seen before are not parsed again."""
    folder = kernels / "circuits"
    maps = sorted(folder.glob("*.config.toml"))
    circuits = [folder / f"{path.name.removesuffix('.config.toml')}.toml" for path in maps]
    return _parsed(
        tuple((path.name, _read(path)) for path in maps),
        tuple((path.name, _read(path)) for path in circuits),
        tuple((path.stem, _read(path)) for path in sorted((folder / "blocks").glob("*.toml"))),
        tuple((path.stem, _read(path)) for path in sorted((folder / "keys").glob("*.toml"))),
    )


@lru_cache(maxsize=2)
def _parsed(maps: Texts, circuits: Texts, blocks: Texts, keys: Texts) -> Library:
    """A run asks three times, and parsing takes some 60 ms of processor time."""
    return Library.parse(dict(maps), dict(circuits), dict(blocks), dict(keys))


def resolve_from_config(
    config: Mapping[str, object], kernels: Path, source: str = "config.json"
) -> Resolved:
    """Read the architectures under `kernels` and understand a config with them."""
    return resolve_checkpoint(config, library=read_library(kernels), source=source)


def circuit_from_config(
    config: Mapping[str, object], kernels: Path, source: str = "config.json"
) -> Circuit:
    """The circuit of a config, with the architectures read from `kernels`."""
    return resolve_from_config(config, kernels, source).circuit


def class_sizes_of(
    config: Mapping[str, object], kernels: Path, source: str = "config.json"
) -> dict[str, int]:
    """Sizes that a config leaves to its model's class: key -> size.

    Raises:
        RefusedConfig: it is not understood.
    """
    return class_sizes(config, read_library(kernels).map_for(config, source), source)


def read_rules(kernel_set: Path) -> RuleSet:
    """Read the FUSIONS.toml of a kernel set's folder."""
    path = kernel_set / "FUSIONS.toml"
    return parse_fusions(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None
