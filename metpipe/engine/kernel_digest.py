"""What a kernel's bits depend on, as a digest: its own code and all that it reaches in its set.

The unit is a statement at the top of a module. Starting at the kernel function, every name that a
statement uses leads to the statement that binds it, through imports, in its own set and in the
set it imports from: callees, constants, decorators and with them the compile options. Comments,
formatting and docstrings do not count. A name that is a local variable and also a global counts
as the global: the digest may move too often, never too seldom.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Sources", "index_sources"]

Statement = ast.stmt
EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class _Module:
    """The top statements of one module, by the names they bind."""

    bound: Mapping[str, Statement]
    imported: Mapping[str, tuple[str, str | None]]
    """local name -> (module, name in it; None for the module itself)"""
    always: tuple[Statement, ...]
    """statements that act without being named: calls, conditions, registrations"""


@dataclass(frozen=True, slots=True)
class Sources:
    """The indexed modules of the loaded sets, by full name."""

    modules: Mapping[str, _Module]
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)
    _read: dict[Statement, tuple[str, list[str]]] = field(default_factory=dict)
    """statement -> its code, and the names that it uses: many kernels share their callees"""

    def digest(self, module: str, name: str) -> str:
        """Hex SHA-256 of the closure of `name` in `module`.

        Raises:
            KeyError: there is no such module, or nothing in it binds that name.
        """
        key = (module, name)
        if key not in self._digests:
            if name not in self.modules[module].bound:
                raise KeyError(f"{module}.{name}")
            lines = sorted(set(self._lines(module, name)))
            self._digests[key] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return self._digests[key]

    def _lines(self, module: str, name: str) -> Iterator[str]:
        """One line for each statement reached: where it stands and its code."""
        waiting, seen = [(module, name)], {(module, name)}
        while waiting:
            place = waiting.pop()
            yield self._line(*place)
            for following in self._follow(*place):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)

    def _line(self, module: str, name: str) -> str:
        short = module.split(".", 2)[-1]
        statement = self._statement(module, name)
        return f"{short}.{name}: " + ("" if statement is None else self._code(statement)[0])

    def _code(self, statement: Statement) -> tuple[str, list[str]]:
        if statement not in self._read:
            self._read[statement] = ast.dump(statement), _names(statement)
        return self._read[statement]

    def _statement(self, module: str, name: str) -> Statement | None:
        known = self.modules.get(module)
        if known is None:
            return None
        if name.startswith("#"):
            return known.always[int(name[1:])]
        return known.bound.get(name)

    def _follow(self, module: str, name: str) -> Iterator[tuple[str, str]]:
        known = self.modules.get(module)
        statement = self._statement(module, name)
        if known is None or statement is None:
            return
        yield from ((module, f"#{i}") for i in range(len(known.always)))
        for used in self._code(statement)[1]:
            if used in known.bound:
                yield module, used
            elif used in known.imported:
                yield from self._imported(*known.imported[used])

    def _imported(self, module: str, name: str | None) -> Iterator[tuple[str, str]]:
        known = self.modules.get(module)
        if known is None:
            yield module, name or EXTERNAL
        elif name is None:
            yield from ((module, each) for each in known.bound)
        elif name in known.imported:
            yield from self._imported(*known.imported[name])
        else:
            yield module, name


def index_sources(texts: Mapping[str, str]) -> Sources:
    """Index modules given as full name -> source text.

    Raises:
        SyntaxError: a text is not Python.
    """
    return Sources({name: _index(name, ast.parse(text), texts) for name, text in texts.items()})


def _index(module: str, tree: ast.Module, known: Iterable[str]) -> _Module:
    known = frozenset(known)
    inner = f"{module}.__init__" if any(name.startswith(f"{module}.") for name in known) else module
    bound: dict[str, Statement] = {}
    imported: dict[str, tuple[str, str | None]] = {}
    always: list[Statement] = []
    named = [name for statement in tree.body for name in _names(statement)]
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imported.update(_imports(inner, statement, known))
            continue
        _drop_docstrings(statement)
        names = _binds(statement)
        bound.update(dict.fromkeys(names, statement))
        if _acts_unnamed(statement, names, named):
            always.append(statement)
    return _Module(bound, imported, tuple(always))


def _acts_unnamed(statement: Statement, names: list[str], named: list[str]) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        # A private definition with a decorator that nobody names was made to be registered.
        unused = names[0].startswith("_") and names[0] not in named
        return bool(statement.decorator_list) and unused
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    return not isinstance(statement, ast.Assign | ast.AnnAssign) or not names


def _binds(statement: Statement) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _names(statement: Statement) -> list[str]:
    return sorted(
        {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
    )


def _imports(
    module: str, statement: ast.Import | ast.ImportFrom, known: frozenset[str]
) -> Iterator[tuple[str, tuple[str, str | None]]]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            local = alias.asname or alias.name.partition(".")[0]
            yield local, (alias.name, None)
        return
    source = absolute_module(module, statement)
    for alias in statement.names:
        inner = f"{source}.{alias.name}"
        target = (inner, None) if inner in known else (source, alias.name)
        yield alias.asname or alias.name, target


def absolute_module(module: str, statement: ast.ImportFrom) -> str:
    """The full name of the module that `from ... import` in `module` names."""
    if not statement.level:
        return statement.module or ""
    base = module.split(".")[: -statement.level]
    return ".".join([*base, statement.module] if statement.module else base)


def _drop_docstrings(statement: Statement) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            kept = [item for item in node.body if not _is_text(item)]
            node.body = kept or [ast.Pass()]


def _is_text(statement: Statement) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
