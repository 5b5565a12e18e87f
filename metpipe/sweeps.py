"""Sweeps as the command line sees them: which jobs one has, and its report, also made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.text import Text

from metpipe.errors import ConfigError, Exit
from metpipe.folder import MULTIRUN
from metpipe.nouns import number_of
from metpipe.terminal import terminal

__all__ = ["again", "announce", "asked_again", "planned", "refuse_none", "report", "swept"]

SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def planned(config: DictConfig) -> list[list[str]]:
    """The overrides of each job of a sweep; none where a sweeper decides them as it goes.

    Nor are they known of a glob() when the sweep is over.
    """
    hydra = config.hydra
    if hydra.sweeper._target_ != SWEEPER:
        return []
    swept = OmegaConf.to_container(hydra.sweeper, resolve=False)
    assert isinstance(swept, dict)
    lines = [f"{key}={value}" for key, value in (swept.get("params") or {}).items()]
    session = GlobalHydra.instance()
    loader = session.config_loader() if session.is_initialized() else None
    parsed = OverridesParser.create(loader).parse_overrides([*lines, *_typed(config)])
    if loader is None and any(isinstance(override._value, Glob) for override in parsed):
        return []  # only who composes the jobs knows the choices
    batches = BasicSweeper.split_arguments(parsed, None)
    return [[*job] for batch in batches for job in batch]


def refuse_none(config: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """Refuse a sweep that has no job.

    Raises:
        ConfigError: naming an override that gives its key no value.
    """
    if jobs or config.hydra.sweeper._target_ != SWEEPER:
        return
    loader = GlobalHydra.instance().config_loader()
    for override in OverridesParser.create(loader).parse_overrides(_typed(config)):
        if override.is_sweep_override() and not any(True for _ in override.sweep_string_iterator()):
            raise ConfigError(
                f"{override.input_line}: holds no value, so the sweep has no job; give at least one"
            )
    raise ConfigError("hydra.sweeper.params: the sweep has no job; give each key a value")


def _typed(config: DictConfig) -> list[str]:
    lines = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def swept(argv: Sequence[str]) -> tuple[str, ...]:
    """The keys that an argument gives several values for."""
    parsed = OverridesParser.create().parse_overrides([*argv])
    return tuple(str(o.get_key_element()) for o in parsed if o.is_sweep_override())


def announce(config: DictConfig, jobs: int) -> None:
    """Say that a sweep of so many jobs starts, and where it goes; 0 where nobody knows it yet."""
    many = number_of(jobs, "job") if jobs else "jobs"
    how = config.hydra.runtime.choices["hydra/launcher"]
    line = f"sweep of {many}, launcher {how}: {config.hydra.sweep.dir}"
    terminal().print(Text(line, style="dim"), soft_wrap=True)


def report(sweep_dir: Path, jobs: Sequence[Sequence[str]], *, interrupted: bool) -> list[Exit]:
    """Write and show the report of a sweep that has ended; its jobs' statuses."""
    from metpipe.report import sweep  # here, not above: a single run has no use for it

    return sweep.write(sweep_dir, terminal(), jobs, interrupted=interrupted)


def asked_again(argv: Sequence[str]) -> Path | None:
    """The folder of `sweep=FOLDER`, the only argument of its line; None of any other line.

    Raises:
        ConfigError: there are others beside it.
    """
    folders = [arg.partition("=")[2] for arg in argv if arg.startswith("sweep=")]
    if not folders:
        return None
    if len(argv) > 1:
        said = "shows a sweep that has ended; it takes no other arguments"
        raise ConfigError(f"sweep={folders[0]}: {said}")
    return Path(folders[0]).expanduser()


def again(sweep_dir: Path) -> list[Exit]:
    """The report of an earlier sweep's folder, made again from what its jobs left.

    Raises:
        ConfigError: it is no sweep's folder, or one without a job.
    """
    path = sweep_dir / MULTIRUN
    if not path.is_file():
        raise ConfigError(f"sweep={sweep_dir}: there is no {path}; give the folder of a sweep")
    try:
        config = OmegaConf.load(path)
        assert isinstance(config, DictConfig)
        jobs = planned(config)
    except (OmegaConfBaseException, AssertionError, ValueError) as error:
        raise ConfigError(f"sweep={sweep_dir}: {path} is broken ({error})") from None
    statuses = report(sweep_dir, jobs, interrupted=False)
    if not statuses:
        raise ConfigError(f"sweep={sweep_dir}: no job of it has started")
    return statuses
