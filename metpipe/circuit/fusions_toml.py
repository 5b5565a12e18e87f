"""Reads FUSIONS.toml, schema 1, also a user's own: every message names file and rule."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.circuit.errors import RuleFileError
from metpipe.circuit.formats import parse_format
from metpipe.circuit.rules import (
    CHUNK,
    REPEATS,
    Element,
    Kernel,
    Numerics,
    Rule,
    RuleSet,
    RunSelector,
    Runtime,
)
from metpipe.circuit.sources import Source, source_problem
from metpipe.circuit.strict import Table, read_toml
from metpipe.circuit.vocabulary import LAYER_KINDS, LINEAR_ROLES, MODES, OPS
from metpipe.errors import ConfigError

__all__ = ["parse_fusions"]

TIMES = frozenset({"once", "per_seq", "per_row", "per_seq_row_but_last"})
CLASSES = ("reference", "bit_identical", "differs")


def parse_fusions(text: str, source: str) -> RuleSet:
    """Read a rule file.

    Raises:
        RuleFileError: a key is unknown, missing or of another type, an id stands twice, an op,
            mode, format or source is not known, or a numerics class lacks its qualifier.
    """
    with read_toml(text, source, RuleFileError) as root:
        root.schema(1)
        rules: dict[str, Rule] = {}
        for table in root.tables("rule"):
            rule = _rule(table, source)
            if rule.id in rules:
                raise table.fail("another rule of this file has that id")
            rules[rule.id] = rule
        runtimes = [_runtime(table) for table in root.tables("runtime")]
        return RuleSet(source, rules, {runtime.id: runtime for runtime in runtimes})


def _rule(table: Table, source: str) -> Rule:
    with table:
        pattern = tuple(_element(item) for item in table.tables("pattern", "pattern element"))
        if not pattern:
            raise table.fail("pattern must list at least one op")
        numerics = _numerics(table)
        if numerics.kind == "reference" and len(pattern) > 1:
            raise table.fail(
                "a reference rule is exactly one op with the kernel that legacy calls; a rule over "
                f"{len(pattern)} ops is bit_identical (with a microtest) or differs (with a lever)"
            )
        return Rule(
            id=table.text("id"),
            pattern=pattern,
            kernels=_kernels(table, len(pattern)),
            rows=_range(table, "rows"),
            modes=_modes(table),
            numerics=numerics,
            priority=table.integer("priority"),
            cite=_filled(table, "cite"),
            source=source,
            repeat=_repeat(table, "repeat", "once"),
            copies=_repeat(table, "copies", None) if table.has("copies") else None,
            emitter=table.optional_text("emitter"),
            requires=frozenset(table.texts("requires", ())),
            when=table.text_map("when"),
            runs=_runs(table, len(pattern)),
        )


def _element(table: Table) -> Element:
    with table:
        op = table.choice("op", OPS)
        roles = (table.text("role"),) if table.has("role") else table.texts("roles", ())
        for role in roles:
            if op != "linear" or role not in LINEAR_ROLES:
                raise table.fail(f"{op} has no role {role!r}; only linear has roles")
        if table.has("layer_kind"):
            table.choice("layer_kind", LAYER_KINDS)
        return Element(
            op=op,
            roles=roles,
            format=_format(table, "format"),
            layer_kind=table.optional_text("layer_kind"),
            local=table.optional_text("local"),
            weight=_format(table, "weight"),
            input=_format(table, "input"),
            writes=_format(table, "writes"),
            keep=table.boolean("keep", False),
            stored=table.boolean("stored", False),
            sibling=table.boolean("sibling", False),
            holds=_format(table, "holds"),
            steps=table.text_map("steps"),
        )


def _format(table: Table, key: str) -> str | None:
    spelling = table.optional_text(key)
    if spelling is None:
        return None
    try:
        return parse_format(spelling).spelling
    except ConfigError as problem:
        raise table.fail(f"{key}: {problem}") from None


def _numerics(table: Table) -> Numerics:
    kind = table.choice("numerics", CLASSES)
    microtest, lever = table.optional_text("microtest"), table.optional_text("lever")
    needed = {"bit_identical": "microtest", "differs": "lever"}.get(kind)
    for name, value in (("microtest", microtest), ("lever", lever)):
        if name == needed and not value:
            raise table.fail(f"numerics = {kind!r} needs a {name}")
        if name != needed and value is not None:
            raise table.fail(f"numerics = {kind!r} takes no {name}")
    match kind:
        case "bit_identical":
            return Numerics("bit_identical", microtest=microtest)
        case "differs":
            return Numerics("differs", lever=lever)
    return Numerics("reference")


def _kernels(table: Table, elements: int) -> tuple[Kernel, ...]:
    entries = table.tables("kernels", "kernel")
    shared = table.table("args") if table.has("args") else None
    if shared is not None and len(entries) != 1:
        raise table.fail("args beside kernels is for a rule of one kernel; put them in each kernel")
    return tuple(_kernel(entry, elements, shared) for entry in entries)


def _kernel(table: Table, elements: int, shared: Table | None = None) -> Kernel:
    with table:
        if shared is not None and table.has("args"):
            raise table.fail("args stand in the rule and in its kernel; keep one")
        args = table.table("args") if shared is None else shared
        return Kernel(
            module=table.text("module"),
            func=table.text("func"),
            args={name: _source(args, name, elements) for name in args.raw},
        )


def _source(args: Table, name: str, elements: int) -> Source:
    source = _as_source(args.value(name), args, name)
    problem = source_problem(source, elements)
    if problem is not None:
        raise args.fail(f"{name}: {problem}")
    return source


def _as_source(value: object, args: Table, name: str) -> Source:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple(_as_source(item, args, name) for item in value)
    raise args.fail(f"{name} must be a source or a list of sources, it is {value!r}")


def _range(table: Table, key: str) -> tuple[int, int]:
    value = table.value(key)
    if not (isinstance(value, list) and len(value) == 2 and all(_is_int(item) for item in value)):
        raise table.fail(f"{key} must be [lowest, highest], it is {value!r}")
    low, high = value
    if not 1 <= low <= high:
        raise table.fail(f"{key} = [{low}, {high}] must satisfy 1 <= lowest <= highest")
    return low, high


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _modes(table: Table) -> frozenset[str]:
    modes = table.texts("modes")
    if not modes:
        raise table.fail("modes must name at least one mode")
    for mode in modes:
        if mode not in MODES:
            raise table.fail(f"no mode is named {mode!r}; the modes are {', '.join(MODES)}")
    return frozenset(modes)


def _repeat(table: Table, key: str, default: str | None) -> str:
    value = table.text(key) if default is None else table.text(key, default)
    if value not in REPEATS and not CHUNK.fullmatch(value):
        raise table.fail(f"{key} = {value!r} must be one of {', '.join(REPEATS)} or chunk<n>")
    return value


def _filled(table: Table, key: str) -> str:
    value = table.text(key)
    if not value.strip():
        raise table.fail(f"{key} must not be empty")
    return value


def _runs(table: Table, elements: int) -> tuple[RunSelector, ...]:
    runs = tuple(_run(entry, elements) for entry in table.tables("run"))
    if bool(runs) != (table.value("repeat", "once") == "per_run"):
        raise table.fail("run selectors and repeat = 'per_run' go together")
    return runs


def _run(table: Table, elements: int) -> RunSelector:
    with table:
        return RunSelector(
            k=_range(table, "k"),
            n=_range(table, "n"),
            contiguous=table.boolean("contiguous") if table.has("contiguous") else None,
            carried=table.boolean("carried") if table.has("carried") else None,
            launches=tuple(_launch(entry, elements) for entry in table.tables("launches")),
            copies=table.choice("copies", TIMES) if table.has("copies") else None,
        )


def _launch(table: Table, elements: int) -> tuple[Kernel, str]:
    times = table.choice("times", TIMES, "once")
    return _kernel(table, elements), times


def _runtime(table: Table) -> Runtime:
    with table:
        return Runtime(
            id=table.text("id"),
            when=_filled(table, "when"),
            modes=_modes(table),
            rows=_range(table, "rows"),
            plans_as=_settings(table),
            why=_filled(table, "why"),
            cite=_filled(table, "cite"),
        )


def _settings(table: Table) -> Mapping[str, str]:
    settings = table.text_map("plans_as")
    if not settings:
        raise table.fail("plans_as must state the settings of the other arm")
    return settings
