"""Loads a folder of kernels by path, as a plug-in: checks it, imports it, names its code.

Compiled code is cached in a folder named by the digest of every source that it may be made of:
numba itself notices an edited kernel, but not an edited callee. See `kernel_digest` for the digest
of one kernel.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metpipe.circuit import Hardware, parse_hardware
from metpipe.engine.checkpoints.cache import cache_dir
from metpipe.engine.kernel_digest import Sources, index_sources
from metpipe.engine.kernel_imports import check_imports
from metpipe.engine.kernel_modules import forget_package, import_functions
from metpipe.engine.promises import check_promises, parse_promises
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

__all__ = ["BUILT_IN", "OVERLAY_PACKAGE", "SHIPPED", "KernelSet", "load_kernel_set"]

logger = logging.getLogger(__name__)

SHIPPED = "metpipe_kernels"
"""The package of the sets that are shipped; each is named as its folder."""
BUILT_IN = f"{SHIPPED}.cpu"
OVERLAY_PACKAGE = f"{SHIPPED}.overlay"
TABLES = ("HARDWARE.toml", "FUSIONS.toml", "FAMILIES.toml", "INVARIANCE.toml")


@dataclass(frozen=True, slots=True)
class KernelSet:
    """A loaded set. `functions` are its public functions by "module.func"."""

    folder: Path
    package: str
    hardware: Hardware
    digest: str
    """hex SHA-256 of every source and table of the folder"""
    functions: Mapping[str, Callable[..., Any]]
    texts: Mapping[str, str]
    """file name -> content of the tables"""
    cache_dir: Path
    _sources: Sources

    @property
    def name(self) -> str:
        """What HARDWARE.toml calls it."""
        return self.hardware.name

    @property
    def capabilities(self) -> frozenset[str]:
        """What a rule's `requires` may ask for."""
        return self.hardware.capabilities

    @property
    def settings(self) -> Mapping[str, str]:
        """What a rule's `when` may ask for."""
        return self.hardware.settings

    def kernel_digest(self, kernel: str) -> str:
        """Hex SHA-256 of a kernel "module.func": its code, callees, constants, compile options.

        Raises:
            ConfigError: the set has no such kernel.
        """
        if kernel not in self.functions:
            raise ConfigError(f"{self.folder}: the kernel set has no kernel {kernel!r}")
        module, _, function = kernel.rpartition(".")
        return self._sources.digest(f"{self.package}.{module}", function)


_loaded: dict[str, tuple[str, KernelSet]] = {}
"""package -> digest of all sources its code may be made of, and the set"""
_texts: dict[str, dict[str, str]] = {}
"""package -> full module name -> source, of the sets that are in sys.modules now"""


def load_kernel_set(folder: Path, *, package: str, on: str = BUILT_IN) -> KernelSet:
    """Import the kernel set in `folder` as `package`, new if a file changed since the last time.

    `on`: the package of a shipped set that this one may import from, and which must be loaded
    first; its own, for a shipped one. A set that inherits has its HARDWARE.toml alone: the rest is
    the other set's.

    Raises:
        ConfigError: a table is missing or breaks its schema; a module is not Python, imports what
            a set may not import, or raises when it is imported. The message names the file.
    """
    about = folder.resolve() / "HARDWARE.toml"
    hardware = parse_hardware(_read(about), str(about))
    folder = about.parent if hardware.inherits is None else about.parent.parent / hardware.inherits
    texts = {name: _read(folder / name) for name in TABLES} | {about.name: _read(about)}
    promises = str(folder / "INVARIANCE.toml")
    found = parse_promises(texts["INVARIANCE.toml"], promises)
    check_promises(found, promises, _families(), whole=package == on)
    files = _source_files(folder, package)
    sources = {module: _read(path) for module, path in files.items()}
    below = {} if package == on else _texts.get(on, {})
    digest, code = _digest({**texts, **sources}), _digest({**below, **sources})
    known_code, known = _loaded.get(package, (None, None))
    if known is not None and (known.folder, known.digest, known_code) == (folder, digest, code):
        return known
    for module, path in files.items():
        check_imports(sources[module], module, path, own=package, built_in=on)
    cache_dir = _use_cache(code)
    _loaded.pop(package, None)
    _texts.pop(package, None)
    forget_package(package)
    functions = import_functions(folder, package, files)
    _texts[package] = sources
    index = index_sources({**below, **sources})
    loaded = KernelSet(folder, package, hardware, digest, functions, texts, cache_dir, index)
    _loaded[package] = (code, loaded)
    return loaded


def _families() -> dict[str, bool]:
    """Every family that a circuit describes, and whether it describes a draft head."""
    folder = kernels_dir() / "circuits"
    names = [file.name.removesuffix(".config.toml") for file in folder.glob("*.config.toml")]
    return {name: _describes_a_draft_head(folder / f"{name}.toml") for name in names}


def _describes_a_draft_head(circuit: Path) -> bool:
    try:
        return "draft" in tomllib.loads(_read(circuit))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{circuit}: not valid TOML: {error}; mend it") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: missing; a kernel set is a folder with {', '.join(TABLES)} and its modules"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from None


def _source_files(folder: Path, package: str) -> dict[str, Path]:
    """Full module name -> file, of every module below the folder."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        files[".".join((package, *parts))] = path
    if not files:
        raise ConfigError(f"{folder}: the kernel set has no Python module")
    return files


def _digest(texts: Mapping[str, str]) -> str:
    sha = hashlib.sha256()
    for name in sorted(texts):
        content = texts[name].encode()
        sha.update(f"{name}\0{len(content)}\0".encode() + content)
    return sha.hexdigest()


def _use_cache(digest: str) -> Path:
    """Point numba's cache at the folder of these sources; kernels take it when they are defined."""
    from numba import config

    folder = cache_dir() / "numba" / digest[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        logger.warning(
            "kernels are compiled anew in each run: the cache %s is not writable (%s); set "
            "METPIPE_CACHE to a folder that is",
            folder,
            error,
        )
        folder = Path(tempfile.mkdtemp(prefix="metpipe-numba-"))
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder
