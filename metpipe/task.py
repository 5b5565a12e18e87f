"""One job of a command line, as Hydra calls it: in this process, or in one that a launcher made."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.text import Text

from metpipe import complaint, snapshot
from metpipe.config import Provenance, Run, validate, with_source
from metpipe.errors import ConfigError, Exit
from metpipe.filled import filled_keys
from metpipe.folder import LOG, TRACEBACK, forget
from metpipe.pipeline.store import FOLDER, RESULT
from metpipe.report import outcome
from metpipe.report.console import VERDICT_STYLES, covered
from metpipe.report.schema import REPORT, Report
from metpipe.terminal import PIPE_WIDTH, terminal

__all__ = ["BASIC", "ENDED", "LOG", "Task"]

ENDED: list[Exit] = []
"""How the jobs of this process ended; Hydra keeps no return value of theirs."""

BASIC = "basic"
"""The launcher that runs the jobs one by one in this process."""


def _interrupted(out_dir: Path) -> str:
    """What an interrupted run says: how to go on, where some stage is done."""
    if any((out_dir / FOLDER).glob(f"*/{RESULT}")):
        return f"interrupted; finished stages are kept: resume={out_dir}"
    return "interrupted before any stage was finished"


@dataclass(frozen=True, slots=True)
class Task:
    """What a job does. It carries what it must know of the command line into other processes."""

    argv: Sequence[str] = ()
    rerun: Path | None = None
    typed: complaint.Typed = field(default_factory=complaint.Typed)
    swept: Sequence[str] = ()
    """the keys along which the sweep varies"""

    def __call__(self, cfg: DictConfig) -> str:
        """Run one job. It never raises, but for an interrupt: a sweep's other jobs must go on."""
        out_dir, overrides = Path(HydraConfig.get().runtime.output_dir), task_overrides()
        error: str | None = None
        try:
            status = self._run(cfg, out_dir, overrides)
        except KeyboardInterrupt:
            _leave(out_dir, Exit.INTERRUPTED, "interrupted", overrides)
            print(_interrupted(out_dir), file=sys.stderr)
            raise
        except ConfigError as wrong:
            status, error = Exit.USAGE, with_source(str(wrong), self.provenance())
            print(f"config error{_of_job()}\n{error}", file=sys.stderr)
        except (Exception, SystemExit) as bug:
            status, error = Exit.DIED, f"{type(bug).__name__}: {bug}"
            traceback.print_exc()
            with suppress(OSError):
                (out_dir / TRACEBACK).write_text(traceback.format_exc())
        _leave(out_dir, status, error, overrides)
        if _number() is not None:
            _tell(status, error, out_dir, self.swept)
        ENDED.append(status)
        return status.name

    def _run(self, cfg: DictConfig, out_dir: Path, overrides: list[str]) -> Exit:
        if _number() is not None:  # jobs whose folders are one by hydra.sweep.subdir
            forget(out_dir, "hydra.sweep.dir")
        run = self.load(cfg)
        record = snapshot.write(run, out_dir, overrides, self.argv)
        if self.rerun is not None:
            said = snapshot.compared(record, self.rerun)
            snapshot.add(out_dir, rerun=said)
            print(said)
        # A thread that waits spins about two milliseconds, longer than the gap between steps, then
        # lets its core go to others. OpenMP reads this when it is loaded, as the next import does.
        os.environ.setdefault("GOMP_SPINCOUNT", "50000")
        logging.getLogger("torch").setLevel(logging.WARNING)  # its statistics are no one's news
        # torch rounds each large buffer up to two megabytes unless its segments may grow: that is a
        # gigabyte for the buffers of a hybrid. It reads this when the GPU is first used.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        from metpipe.stages.job import run_job  # here, not above: torch comes with it

        typed = self.provenance().typed
        if _number() is None:
            return run_job(run, out_dir, terminal(), typed=typed)
        try:
            with (out_dir / LOG).open("w", encoding="utf-8") as file:
                log = Console(file=file, width=PIPE_WIDTH, no_color=True)
                return run_job(run, out_dir, terminal() if _alone() else log, log, typed=typed)
        except ConfigError:  # a job that was refused has nothing to report
            _drop_empty(out_dir / LOG)
            raise

    def load(self, cfg: DictConfig) -> Run:
        """The validated run behind Hydra's composed config.

        Raises:
            ConfigError: what is wrong, who set it, what to do.
        """
        try:
            plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:  # a ??? left unset, an interpolation to nowhere
            raise ConfigError(complaint.text(error, self.typed)) from None
        assert isinstance(plain, dict)
        return validate({str(key): value for key, value in plain.items()}, self.provenance())

    def provenance(self) -> Provenance:
        """The task overrides and the group choices behind this job."""
        chosen = HydraConfig.get().runtime.choices
        groups = {k: str(v) for k, v in chosen.items() if not k.startswith("hydra/")}
        parsed = OverridesParser.create().parse_overrides(task_overrides())
        lines = [
            (o.key_or_group.replace("/", ".").split("@")[-1], str(o.input_line)) for o in parsed
        ]
        sources = HydraConfig.get().runtime.config_sources
        folders = [Path(source.path) for source in sources if source.schema == "file"]
        return Provenance(tuple(lines), groups, self.typed.origins, filled_keys(groups, folders))


def _drop_empty(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()


def task_overrides() -> list[str]:
    """The overrides as typed; an interpolation in one is not for us to resolve."""
    lines = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def _number() -> int | None:
    """The job's number in its sweep; None of a single run."""
    hydra = HydraConfig.get()
    return int(hydra.job.num) if hydra.mode == RunMode.MULTIRUN else None


def _alone() -> bool:
    """Whether no other job may print at the same time."""
    return str(HydraConfig.get().runtime.choices["hydra/launcher"]) == BASIC


def _of_job() -> str:
    number = _number()
    return "" if number is None else f" in job {number}"


def _leave(out_dir: Path, status: Exit, error: str | None, overrides: list[str]) -> None:
    """Keep how the job ended; where that cannot be kept, it still is the exit status."""
    try:
        outcome.write(out_dir, status, error, overrides)
    except OSError as wrong:
        print(f"{out_dir}: no outcome.json is kept ({wrong.strerror or wrong})", file=sys.stderr)


def _tell(status: Exit, error: str | None, out_dir: Path, swept: Sequence[str]) -> None:
    """How a job of a sweep ended, in a line: its own values, its status, and what came of it."""
    own = [line for line in task_overrides() if line.partition("=")[0] in swept]
    said = error or ""
    if (out_dir / REPORT).is_file():
        report = Report.read(out_dir)
        said = next(iter(report.reasons), "") or covered(report)
    line = Text.assemble(
        (f"#{_number():<4} ", "dim"),
        (f"{status.name:<12} ", VERDICT_STYLES[status.name]),
        f"{' '.join(own)}  ",
        (next(iter(said.splitlines()), ""), "dim"),
    )
    terminal().print(line, soft_wrap=True)
