"""Imports the files of a kernel set under a fixed package name, new each time it is asked to."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from metpipe.errors import ConfigError

__all__ = ["forget_package", "import_functions"]

ROOT = "metpipe_kernels"


def forget_package(package: str) -> None:
    """Drop a package from the process, so that its next import runs its files again."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the source each time: Python's bytecode cache misses two edits within a second."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _SetFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of loaded kernel sets by their full names."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Path]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for files in self.files.values():
            if fullname in files:
                return _spec(fullname, files[fullname])
        return None


def _spec(name: str, path: Path) -> importlib.machinery.ModuleSpec | None:
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    loader = _SourceLoader(name, str(path))
    return importlib.util.spec_from_file_location(
        name, path, loader=loader, submodule_search_locations=inside
    )


_finder = _SetFinder()


def import_functions(folder: Path, package: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Run the set's files (full module name -> path); the public functions at its top, by name.

    Raises:
        ConfigError: a file raises; it names file and line, and nothing of the package stays.
    """
    _finder.files[package] = dict(files)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    sys.modules.setdefault(ROOT, _empty_package(ROOT))
    if package not in files:
        sys.modules[package] = _empty_package(package)
    functions: dict[str, Any] = {}
    for module, path in files.items():
        if path.parent != folder:
            continue
        functions.update(_functions(_import_one(module, path, package), module, package))
    return functions


def _empty_package(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    return module


def _import_one(module: str, path: Path, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:
        forget_package(package)
        where = _line_of(error, path)
        raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error


def _line_of(error: Exception, path: Path) -> str:
    """The file and line of the set where an import went wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    inside = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    return f"{inside[-1].filename}:{inside[-1].lineno}" if inside else str(path)


def _functions(module: ModuleType, full_name: str, package: str) -> dict[str, Any]:
    short = full_name.removeprefix(f"{package}.")
    return {
        f"{short}.{name}": value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == full_name and not name.startswith("_")
    }
