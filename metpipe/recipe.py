"""Expands recipe=FILE, rerun=DIR and ledger.boot=FILE into plain overrides, before Hydra parses.

They are the overrides that a user would have typed, so that later ones win, sweeps work, an error
names the override, and the snapshot's overrides.yaml holds the whole run without the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from metpipe.beside_boot import refuse_beside_a_boot
from metpipe.errors import ConfigError
from metpipe.file_kind import kind_of
from metpipe.resources import conf_dir

__all__ = ["Expanded", "expand"]

OTHER_ENGINES_FLAGS = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_prefill_tokens",
    "num_speculative_tokens": "num_drafts",
}
"""Names of another engine's flags that recipes use -> the serve key; serve keys name themselves."""


FLAGS: Mapping[str, str] = {
    "--detail": "report.detail=true",
    "--per-node": "report.per_node=true",
}
"""Options that are short for a key."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """The command line as Hydra shall see it, and the run that it repeats, if it does."""

    argv: list[str]
    rerun: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """override -> the argument that stands for it: recipe=, rerun= or ledger.boot="""


def expand(argv: Sequence[str]) -> Expanded:
    """Replace each recipe=, rerun= and short option in place; put a boot's serve before its file.

    A later argument still wins.

    Raises:
        ConfigError: a file that is missing or broken, a key that it may not hold, or a `model`
            other than the recipe's, typed or of another file; what a boot stands for beside it.
    """
    said: list[tuple[str, str]] = []
    origins: dict[str, str] = {}
    for arg in argv:
        lines = _lines(arg, argv)
        if _stands_for_a_model(arg):
            _refuse_two_models(lines, arg, [line for line, _ in said], origins)
        if _stands_for_a_model(arg) or arg in FLAGS:
            origins |= dict.fromkeys((line for line in lines if line != arg), arg)
        said += ((line, arg) for line in lines)
    refuse_beside_a_boot(said)
    reruns = [_place(arg) for arg in argv if arg.startswith("rerun=")]
    return Expanded([line for line, _ in said], reruns[-1] if reruns else None, origins)


def _stands_for_a_model(arg: str) -> bool:
    return arg.partition("=")[0] in ("recipe", "rerun", "ledger.boot")


def _lines(arg: str, argv: Sequence[str]) -> list[str]:
    """The overrides that an argument stands for; a boot's file stands behind its own."""
    match arg.split("=", 1):
        case ["recipe", _]:
            return _recipe(_place(arg), [other for other in argv if other != arg])
        case ["rerun", _]:
            return _rerun(_place(arg))
        case ["ledger.boot", path] if path != "null":
            return [*_boot(_place(arg), arg, argv), arg]
        case [flag] if flag in FLAGS:
            return [FLAGS[flag]]
        case ["hardware", choice]:
            return [f"hardware={_underscored(choice)}"]
    return [arg]


def _place(arg: str) -> Path:
    """The path behind the = of an argument."""
    path = arg.partition("=")[2]
    if not path:
        raise ConfigError(f"{arg}: must be a path; leave the argument out, or give one")
    return Path(path).expanduser()


def _underscored(choice: str) -> str:
    """Device ids have dashes, their files underscores; both are accepted."""
    return choice.replace("-", "_") if re.fullmatch(r"[\w,\-\[\] ]+", choice) else choice


def _rerun(run_dir: Path) -> list[str]:
    overrides = run_dir / ".hydra" / "overrides.yaml"
    if not os.path.isfile(overrides):  # a path too long or not to be entered is none either
        raise ConfigError(
            f"rerun={run_dir}: there is no {overrides}; give the folder of a run that started "
            "(it holds run.json and .hydra/)"
        )
    lines = _read_yaml(overrides, f"rerun={run_dir}")
    if not isinstance(lines, list):
        raise ConfigError(f"rerun={run_dir}: {overrides} is broken: it holds no list of overrides")
    return [str(line) for line in lines]


def _boot(path: Path, said: str, argv: Sequence[str]) -> list[str]:
    """The model, the device and the serve that a boot was started with."""
    from metpipe.memory.met.boot_toml import parse_boot  # here: no other line needs the planner

    if not os.path.isfile(path):
        found = kind_of(path)
        raise ConfigError(
            f"{said}: {found}; give the boot's .toml file"
            if found
            else f"{said}: there is no such file (looked in {Path.cwd()}); give one boot, a sweep "
            "takes one line each"
        )
    boot = parse_boot(_read_text(path, said), str(path))
    lines = [
        f"model={_boots_model(boot.checkpoint, said)}",
        f"hardware={_underscored(boot.hardware)}",
        "memory.accounting=met",
        f"memory.met_version={boot.version}",
        *(_flag(flag, value, said) for flag, value in boot.serve.items()),
        *(["slots=auto"] if boot.slots_follow else []),
    ]
    _refuse_another_model(lines, argv, said)
    return lines


def _boots_model(checkpoint: str, said: str) -> str:
    """The shipped choice that a boot's checkpoint means; no folder may be given beside a boot."""
    if (choice := _choice_of(checkpoint, said)) is None:
        raise ConfigError(
            f"{said}: no model choice is named {_stem(checkpoint)!r} for {checkpoint}, and a boot "
            "is checked against one of them (metpipe --help); correct the file's checkpoint"
        )
    return choice


def _recipe(path: Path, others: Sequence[str]) -> list[str]:
    said = f"recipe={path}"
    if os.path.isdir(path):
        raise ConfigError(f"{said}: is a folder; give the .toml or .yaml file in it")
    if not os.path.isfile(path):
        raise ConfigError(f"{said}: there is no such file (looked in {Path.cwd()})")
    if path.suffix == ".toml":
        lines = _from_toml(_read_toml(path, said), said)
    elif path.suffix in (".yaml", ".yml"):
        lines = _from_yaml(_read_yaml(path, said), said, others)
    else:
        raise ConfigError(f"{said}: a recipe is a .toml or a .yaml file; give one of them")
    _refuse_another_model(lines, others, said)
    return lines


def _refuse_another_model(lines: Sequence[str], others: Sequence[str], said: str) -> None:
    own = next((_plain(line) for line in lines if line.startswith("model=")), None)
    for other in others:
        if own is not None and other.startswith("model=") and _plain(other) != own:
            raise ConfigError(
                f"{other}: {said} is a recipe for model={own}; leave the model out, or the recipe"
            )


def _refuse_two_models(
    lines: Sequence[str], said: str, earlier: Sequence[str], origins: Mapping[str, str]
) -> None:
    """Two files that each stand for a model: the later one would win without a word."""
    own = {_plain(line) for line in lines if line.startswith("model=")}
    for line in earlier:
        if own and line in origins and line.startswith("model=") and _plain(line) not in own:
            raise ConfigError(
                f"{said}: is for model={min(own)}, and {origins[line]} is for "
                f"model={_plain(line)}; give one of them"
            )


def _plain(line: str) -> str:
    return line.partition("=")[2].strip("'\"")


def _read_toml(path: Path, said: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_read_text(path, said))
    except (ValueError, RecursionError) as error:  # a number too long is a ValueError
        raise ConfigError(f"{said}: not a TOML file: {error}") from None


def _read_text(path: Path, said: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(
            f"{said}: can't be read ({error.strerror or error}); check the file and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{said}: not a TOML file: {error}") from None


def _read_yaml(path: Path, said: str) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except OSError as error:
        raise ConfigError(
            f"{said}: can't be read ({error.strerror or error}); check the file and its permissions"
        ) from None
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{said}: not a YAML file: {' '.join(str(error).split())}") from None


def _from_toml(recipe: Mapping[str, Any], said: str) -> list[str]:
    """Group choices first, then values, each in the order the file gives them."""
    for table, content in recipe.items():
        if table not in ("choose", "set") or not isinstance(content, Mapping):
            raise ConfigError(f"{said}: unknown key {table!r}; a recipe has the tables choose, set")
    choices = [
        f"{group}={_value(_choice(group, name), said)}"
        for group, name in recipe.get("choose", {}).items()
    ]
    return choices + [f"{key}={_value(v, said)}" for key, v in _leaves(recipe.get("set", {}))]


def _choice(group: str, name: object) -> object:
    return _underscored(name) if group == "hardware" and isinstance(name, str) else name


def _leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_yaml(recipe: Any, said: str, others: Sequence[str]) -> list[str]:
    """A serve recipe: recipe_version, model, metadata, and defaults that become serve flags."""
    known = ("recipe_version", "model", "metadata", "defaults")
    if not isinstance(recipe, Mapping) or "model" not in recipe:
        raise ConfigError(f"{said}: needs the keys model and defaults")
    for key in recipe:
        if key not in known:
            raise ConfigError(f"{said}: unknown key {key!r}; a recipe has {', '.join(known)}")
    defaults = recipe.get("defaults") or {}
    if not isinstance(defaults, Mapping):
        raise ConfigError(f"{said}: defaults must be a table of serve flags")
    flags = _serve_flags()
    lines = _model_of(str(recipe["model"]), said, others)
    for name, value in defaults.items():
        flag = OTHER_ENGINES_FLAGS.get(name, name)
        if flag not in flags:
            listed = ", ".join(sorted(flags))
            raise ConfigError(
                f"{said}: defaults.{name} is no serve flag that metpipe knows; there are {listed}"
            )
        lines.append(_flag(flag, value, said))
    return lines


def _flag(flag: str, value: object, said: str) -> str:
    """A serve flag as it is typed; a batch that the engine counts itself is slots that follow."""
    if (flag, value) == ("max_batch_size", "auto"):
        return "slots=auto"
    return f"serve.{flag}={_value(value, said)}"


def _serve_flags() -> frozenset[str]:
    return frozenset(map(str, OmegaConf.load(conf_dir() / "serve" / "default.yaml")))


def _model_of(checkpoint: str, said: str, others: Sequence[str]) -> list[str]:
    """The shipped choice of a checkpoint's id, org/Name-8B; none if a folder is given beside it."""
    if (choice := _choice_of(checkpoint, said)) is not None:
        return [f"model={choice}"]
    if any(other.startswith("model.checkpoint=") for other in others):
        return []
    stem = _stem(checkpoint)
    raise ConfigError(
        f"{said}: no model choice is named {stem!r} for {checkpoint}; "
        "add model.checkpoint=FOLDER with that checkpoint"
    )


def _choice_of(checkpoint: str, said: str) -> str | None:
    """The one that states the id, else the one that is named like it."""
    choices = {path.stem: path for path in sorted((conf_dir() / "model").glob("*.yaml"))}
    stating = re.compile(rf"^checkpoint_id: {re.escape(checkpoint)}$", re.MULTILINE | re.IGNORECASE)
    for choice, path in choices.items():
        if stating.search(_read_text(path, said)):
            return choice
    stem = _stem(checkpoint)
    return stem if stem in choices else None


def _stem(checkpoint: str) -> str:
    """`org/Name-8B` -> `name_8b`."""
    return re.sub(r"\W", "_", checkpoint.rpartition("/")[2]).lower()


def _value(value: object, said: str) -> str:
    """One value in Hydra's override grammar; strings are quoted, so that they stay strings."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return str(QuotedString(value, Quote.single).with_quotes())
        case list():
            return "[" + ",".join(_value(item, said) for item in value) + "]"
    raise ConfigError(f"{said}: a recipe cannot hold {type(value).__name__}: {value!r}")
