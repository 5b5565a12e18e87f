"""What the modules of a kernel set may import: numeric libraries, plain standard ones, and sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from metpipe.engine.kernel_digest import absolute_module
from metpipe.errors import ConfigError

__all__ = ["check_imports"]

LIBRARIES = frozenset({"torch", "numpy", "numba", "llvmlite", "triton"})
STANDARD = frozenset({
    "__future__", "array", "collections", "contextlib", "dataclasses", "enum", "functools",
    "itertools", "logging", "math", "operator", "platform", "struct", "types", "typing", "warnings",
})  # fmt: skip


def check_imports(text: str, module: str, path: Path, *, own: str, built_in: str) -> None:
    """Refuse a module of the set `own` that imports anything else.

    Raises:
        ConfigError: it does, or the text is not Python; names file and line.
    """
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    package = module if path.name != "__init__.py" else f"{module}.__init__"
    for line, name in _imported(tree, package):
        inside = any(name == each or name.startswith(f"{each}.") for each in (own, built_in))
        if not inside and name.partition(".")[0] not in LIBRARIES | STANDARD:
            raise ConfigError(
                f"{path}:{line}: imports {name}; a kernel set may import "
                f"{', '.join(sorted(LIBRARIES))}, plain standard modules "
                f"({', '.join(sorted(STANDARD))}), its own modules and those of {built_in}"
            )


def _imported(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, absolute_module(module, node)
