"""The command line: Hydra's entry, one job, and the exit status. Imports no torch and no numba."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from metpipe import choices, complaint, manual, recipe, snapshot
from metpipe.config import Provenance, Run, validate, with_source
from metpipe.errors import ConfigError, Exit, gravest
from metpipe.report import outcome
from metpipe.resources import conf_dir
from metpipe.terminal import mute_closed_stdout, open_missing_streams, terminal

__all__ = ["main"]


class Session:
    """What one process must remember between main() and its jobs; Hydra keeps no return value."""

    statuses: list[Exit]
    sweep: Path | None
    rerun: Path | None
    typed: complaint.Typed

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier command line left."""
        self.statuses, self.sweep, self.rerun = [], None, None
        self.typed = complaint.Typed()


SESSION = Session()


class SweepStarted(Callback):
    """Tells main() where the sweep lives; main() reports, so that no failure skips it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        SESSION.sweep = Path(config.hydra.sweep.dir)


def main() -> None:
    """Run the command line and leave with its exit status."""
    open_missing_streams()
    status = status_of(sys.argv[1:])
    mute_closed_stdout()
    sys.exit(int(status))


def status_of(argv: Sequence[str]) -> Exit:
    """Run one command line: a job or a sweep of them. Its jobs' gravest status."""
    SESSION.begin()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwind, like Ctrl-C
    try:
        if (answer := manual.answer(argv)) is not None:
            print(answer)
            return Exit.PASS
        expanded = recipe.expand(argv)
        ordered = _options_first(expanded.argv)
        SESSION.rerun, SESSION.typed = expanded.rerun, complaint.Typed(ordered, expanded.origins)
        _compose_and_run(ordered)
    except KeyboardInterrupt:
        SESSION.statuses.append(Exit.INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"config error\n{complaint.text(error, SESSION.typed)}", file=sys.stderr)
        SESSION.statuses.append(Exit.USAGE)
    except BrokenPipeError:  # whoever read the help or the config has left
        SESSION.statuses.append(Exit.PASS)
    except OSError as error:  # a job's own are caught in it
        print(f"config error\n{complaint.unwritable(error)}", file=sys.stderr)
        SESSION.statuses.append(Exit.USAGE)
    except SystemExit as stop:  # Hydra's own: 0 after --version, 1 or 2 for a line it cannot read
        SESSION.statuses.append(Exit.USAGE if stop.code else Exit.PASS)
    except Exception as bug:  # Python's own status for it is 1, which is a verdict here
        SESSION.statuses.append(_ended_outside_a_job(bug))
    finally:
        if SESSION.sweep is not None:
            SESSION.statuses += _report_sweep(SESSION.sweep)
    return gravest(SESSION.statuses)


def _ended_outside_a_job(bug: Exception) -> Exit:
    """A log file that Hydra could not open is the user's to mend; anything else is a bug."""
    if isinstance(bug.__cause__, OSError):
        print(f"config error\n{complaint.unwritable(bug.__cause__)}", file=sys.stderr)
        return Exit.USAGE
    traceback.print_exception(bug)
    return Exit.DIED


def _report_sweep(sweep_dir: Path) -> list[Exit]:
    from metpipe.report import sweep  # here, not above: a single run has no use for it

    return sweep.write(sweep_dir, terminal())


def _options_first(argv: Sequence[str]) -> list[str]:
    """The line with -m in front, where Hydra's parser wants it, and no option it doesn't know."""
    sweeps = [arg for arg in argv if arg in ("-m", "--multirun")]
    ordered = [*sweeps, *(arg for arg in argv if arg not in sweeps)]
    parser = get_args_parser()
    parser.error = _refuse_option  # type: ignore[method-assign]
    known, unknown = parser.parse_known_args(ordered)
    asked = (known.run, known.multirun, known.cfg, known.info, known.shell_completion)
    if sum(map(bool, asked)) > 1:
        raise ConfigError("--run, --multirun, --cfg, --info, --shell-completion: give one of them")
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: there is no such option, or it stands behind KEY=VALUE arguments; "
            "put options first. metpipe --help says what there is"
        )
    return ordered


def _refuse_option(message: str) -> NoReturn:
    raise ConfigError(f"{message}; metpipe --hydra-help says what its options take")


def _compose_and_run(argv: Sequence[str]) -> None:
    """Hand the line to Hydra, which calls `job` once per job, or completes, or shows the config."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come as exceptions
    sys.argv[1:] = argv
    choices.check_choices(get_args_parser().parse_args(argv).overrides, SESSION.typed.origins)
    before = len(SESSION.statuses)
    hydra.main(version_base=None, config_path=str(conf_dir()), config_name="config")(job)()
    if len(SESSION.statuses) == before and SESSION.sweep is None:
        SESSION.statuses.append(Exit.PASS)  # --cfg, --info and completion run no job


def job(cfg: DictConfig) -> str:
    """One job. It never raises, but for an interrupt: a sweep's other jobs must go on."""
    out_dir, overrides = Path(HydraConfig.get().runtime.output_dir), task_overrides()
    error: str | None = None
    try:
        status = _run(cfg, out_dir, overrides)
    except KeyboardInterrupt:
        _leave(out_dir, Exit.INTERRUPTED, "interrupted", overrides)
        print(f"interrupted; finished stages are kept: resume={out_dir}", file=sys.stderr)
        raise
    except ConfigError as wrong:
        status, error = Exit.USAGE, with_source(str(wrong), provenance())
        print(f"config error\n{error}", file=sys.stderr)
    except (Exception, SystemExit) as bug:
        status, error = Exit.DIED, f"{type(bug).__name__}: {bug}"
        traceback.print_exc()
        with suppress(OSError):
            (out_dir / "traceback.txt").write_text(traceback.format_exc())
    _leave(out_dir, status, error, overrides)
    SESSION.statuses.append(status)
    return status.name


def _leave(out_dir: Path, status: Exit, error: str | None, overrides: list[str]) -> None:
    """Keep how the job ended; where that cannot be kept, it still is the exit status."""
    try:
        outcome.write(out_dir, status, error, overrides)
    except OSError as wrong:
        print(f"{out_dir}: no outcome.json is kept ({wrong.strerror or wrong})", file=sys.stderr)


def _run(cfg: DictConfig, out_dir: Path, overrides: list[str]) -> Exit:
    run = load(cfg)
    record = snapshot.write(run, out_dir, overrides, sys.argv)
    if SESSION.rerun is not None:
        said = snapshot.compared(record, SESSION.rerun)
        snapshot.add(out_dir, rerun=said)
        print(said)
    # A thread that waits spins about two milliseconds, longer than the gap between steps, then lets
    # its core go to others. OpenMP reads this when it is loaded, which the next import does.
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    from metpipe.stages.job import run_job  # here, not above: torch comes with it

    return run_job(run, out_dir, terminal())


def load(cfg: DictConfig) -> Run:
    """The validated run behind Hydra's composed config.

    Raises:
        ConfigError: what is wrong, who set it, what to do.
    """
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:  # a ??? left unset, an interpolation to nowhere
        raise ConfigError(complaint.text(error, SESSION.typed)) from None
    assert isinstance(plain, dict)
    return validate({str(key): value for key, value in plain.items()}, provenance())


def task_overrides() -> list[str]:
    """The overrides as typed; an interpolation in one is not for us to resolve."""
    lines = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def provenance() -> Provenance:
    """The task overrides and the group choices behind this job."""
    chosen = HydraConfig.get().runtime.choices
    groups = {k: str(v) for k, v in chosen.items() if not k.startswith("hydra/")}
    parsed = OverridesParser.create().parse_overrides(task_overrides())
    lines = [(o.key_or_group.replace("/", ".").split("@")[-1], str(o.input_line)) for o in parsed]
    return Provenance(tuple(lines), groups, SESSION.typed.origins)
