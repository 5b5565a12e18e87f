"""metpipe with a job that runs no model: its status is the exit status that `seed` names.

Run as a program it is the console script with that job. seed=13 is a bug, seed=99 waits, seed=9
kills its own process, seed=7 takes some seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console

from metpipe.config import Run
from metpipe.errors import ConfigError, Exit


def run_job(
    run: Run,
    out_dir: Path,
    console: Console,
    log: Console | None = None,
    *,
    typed: frozenset[str] = frozenset(),
) -> Exit:
    """Stand in for the stages."""
    console.print(f"job with seed {run.seed}")
    if run.seed == 13:
        raise RuntimeError("the disk is on fire")
    if run.seed == 2:
        raise ConfigError("checkpoint: no config.json in it\n    give a folder that has one")
    if run.seed == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if run.seed == 7:
        time.sleep(6)
        return Exit.PASS
    if run.seed == 99:
        (out_dir / "waiting").touch()
        time.sleep(60)
    return Exit(run.seed)


def module() -> ModuleType:
    """The module that takes the place of metpipe.stages.job."""
    fake = ModuleType("metpipe.stages.job")
    fake.run_job = run_job  # type: ignore[attr-defined]
    return fake


if __name__ == "__main__":
    sys.modules["metpipe.stages.job"] = module()
    sys.argv[0] = "metpipe"
    from metpipe.app import main

    main()
