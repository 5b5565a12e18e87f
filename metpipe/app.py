"""The command line: Hydra's entry, one job, and the exit status. Imports no torch and no numba."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from metpipe import choices, complaint, launchers, manual, recipe, sweeps, task
from metpipe.errors import ConfigError, Exit, gravest
from metpipe.folder import Claim
from metpipe.resources import conf_dir
from metpipe.terminal import lose_stdout, mute_closed_stdout, open_missing_streams

__all__ = ["main"]


class Session:
    """What one process must remember of its command line."""

    statuses: list[Exit]
    sweep: DictConfig | None
    jobs: list[list[str]]
    """the overrides of each job of the sweep, as far as they are known"""
    typed: complaint.Typed
    rerun: Path | None
    claim: Claim | None = None
    """the folder that the run or the sweep works in"""
    refusal: Exception | None

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier command line left."""
        task.ENDED.clear()
        self.statuses, self.sweep, self.jobs, self.typed = [], None, [], complaint.Typed()
        self.rerun, self.refusal = None, None
        self.end()

    def end(self) -> None:
        """Let others have the folder."""
        if self.claim is not None:
            self.claim.release()
        self.claim = None


SESSION = Session()


class Started(Callback):
    """Looks at the folder before Hydra writes into it, and gives main() the sweep's config.

    main() reports, so that no failure skips it.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with _heard_by_hydra():
            SESSION.claim = Claim.of_run(Path(str(config.hydra.run.dir)), SESSION.rerun)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        with _heard_by_hydra():
            SESSION.jobs = sweeps.planned(config)
            sweeps.refuse_none(config, SESSION.jobs)
            SESSION.claim = Claim.of_sweep(Path(str(config.hydra.sweep.dir)))
            SESSION.sweep = config
            sweeps.announce(config, len(SESSION.jobs))


@contextmanager
def _heard_by_hydra() -> Iterator[None]:
    """Hydra makes a warning of what a callback raises, unless it is an exit."""
    try:
        yield
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        SESSION.refusal = error
        raise SystemExit(int(Exit.USAGE)) from None


def main() -> None:
    """Run the command line and leave with its exit status."""
    open_missing_streams()
    status = status_of(sys.argv[1:])
    if not mute_closed_stdout():  # what was asked for could not be shown
        status = gravest([status, Exit.USAGE])
    sys.exit(int(status))


def status_of(argv: Sequence[str]) -> Exit:
    """Run one command line: a job or a sweep of them. Its jobs' gravest status."""
    SESSION.begin()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwind, like Ctrl-C
    try:
        if (answer := manual.answer(argv)) is not None:
            print(answer)
            return Exit.PASS
        if (sweep_dir := sweeps.asked_again(argv)) is not None:
            return gravest(sweeps.again(sweep_dir))
        expanded = recipe.expand(argv)
        ordered = _options_first(expanded.argv)
        SESSION.typed = complaint.Typed(ordered, expanded.origins)
        _compose_and_run(ordered, expanded.rerun)
    except KeyboardInterrupt:
        SESSION.statuses.append(Exit.INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"config error\n{complaint.text(error, SESSION.typed)}", file=sys.stderr)
        SESSION.statuses.append(Exit.USAGE)
    except BrokenPipeError:  # whoever read the help or the config has left
        SESSION.statuses.append(Exit.PASS)
    except OSError as error:  # a job's own are caught in it
        if error.filename is None and error.errno == errno.ENOSPC:
            lose_stdout(error)
            return Exit.USAGE
        print(f"config error\n{complaint.unwritable(error)}", file=sys.stderr)
        SESSION.statuses.append(Exit.USAGE)
    except SystemExit as stop:  # Hydra's own: 0 after --version, 1 or 2 for a line it cannot read
        SESSION.statuses.append(Exit.USAGE if stop.code else Exit.PASS)
    except Exception as bug:  # Python's own status for it is 1, which is a verdict here
        SESSION.statuses.append(_ended_outside_a_job(bug))
    finally:
        if SESSION.sweep is not None:
            SESSION.statuses += _report_sweep(SESSION.sweep)
        SESSION.end()
    return gravest([*SESSION.statuses, *task.ENDED])


def _ended_outside_a_job(bug: Exception) -> Exit:
    """A log file that Hydra could not open is the user's to mend.

    A launcher that lost a job says so in a line, since jobs themselves never raise; anything else
    is a bug.
    """
    if isinstance(bug.__cause__, OSError):
        print(f"config error\n{complaint.unwritable(bug.__cause__)}", file=sys.stderr)
        return Exit.USAGE
    if SESSION.sweep is not None and (said := launchers.lost(SESSION.sweep, bug)) is not None:
        print(said, file=sys.stderr)
        return Exit.DIED
    traceback.print_exception(bug)
    return Exit.DIED


def _report_sweep(config: DictConfig) -> list[Exit]:
    """Wait for jobs that still run elsewhere, then report all."""
    interrupted = Exit.INTERRUPTED in SESSION.statuses
    try:
        launchers.launched(config).settle(interrupted=interrupted)
    except KeyboardInterrupt:
        interrupted = True
        SESSION.statuses.append(Exit.INTERRUPTED)
    return sweeps.report(Path(config.hydra.sweep.dir), SESSION.jobs, interrupted=interrupted)


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


def _compose_and_run(argv: Sequence[str], rerun: Path | None) -> None:
    """Hand the line to Hydra, which calls the task once per job, or completes, or shows."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors come as exceptions
    sys.argv[1:] = argv
    overrides = get_args_parser().parse_args(argv).overrides
    choices.check_choices(overrides, SESSION.typed.origins)
    run = task.Task(tuple(sys.argv), rerun, SESSION.typed, sweeps.swept(overrides))
    SESSION.rerun = rerun
    try:
        hydra.main(version_base=None, config_path=str(conf_dir()), config_name="config")(run)()
    except SystemExit:
        if SESSION.refusal is not None:
            raise SESSION.refusal from None
        raise
    if not task.ENDED and SESSION.sweep is None:
        SESSION.statuses.append(Exit.PASS)  # --cfg, --info and completion run no job
