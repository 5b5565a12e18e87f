"""Where a run prints: a terminal, or a pipe that may be closed while it still runs."""

from __future__ import annotations

import os
import sys

from rich.console import Console

__all__ = ["Terminal", "mute_closed_stdout", "open_missing_streams", "terminal"]

PIPE_WIDTH = 120


class Terminal(Console):
    """A console whose reader may leave: the run, its report and its status go on without it."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        mute_stdout()


def terminal() -> Terminal:
    """The terminal; a pipe or a file gets lines of 120 columns, unless COLUMNS says otherwise."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Terminal(width=PIPE_WIDTH) if piped else Terminal()


def open_missing_streams() -> None:
    """Where the shell closed stdout or stderr, Python has None: print to nowhere instead."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def mute_closed_stdout() -> None:
    """Flush what was printed; if nobody reads it any more, that is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        mute_stdout()


def mute_stdout() -> None:
    """Point stdout to nowhere, so that no later write or the exit's flush fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
