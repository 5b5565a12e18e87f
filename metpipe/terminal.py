"""Where a run prints: a terminal, a pipe that may be closed while it runs, a disk that is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console

__all__ = ["Terminal", "mute_closed_stdout", "open_missing_streams", "terminal"]

PIPE_WIDTH = 120


class Terminal(Console):
    """A console whose reader may leave: the run, its report and its status go on without it."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        mute_stdout()

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, unless nothing can be written there any more, which is said once, on stderr."""
        if FULL:
            return
        try:
            super().print(*objects, **options)
        except OSError as error:
            self.quiet = True
            lose_stdout(error)


def terminal() -> Terminal:
    """The terminal; a pipe or a file gets lines of 120 columns, unless COLUMNS says otherwise."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Terminal(width=PIPE_WIDTH) if piped else Terminal()


def open_missing_streams() -> None:
    """Where the shell closed stdout or stderr, Python has None: print to nowhere instead."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = Unfailing(
            sys.stderr.buffer,
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            line_buffering=True,
        )


class Unfailing(TextIOWrapper):
    """A stderr that may be full or closed: what went wrong still is the exit status."""

    def write(self, text: str) -> int:
        """Write, or lose it."""
        with self._or_nowhere():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or lose it."""
        with self._or_nowhere():
            super().flush()

    @contextmanager
    def _or_nowhere(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            point_to_nowhere(self.fileno())


def mute_closed_stdout() -> bool:
    """Flush what was printed, and return whether all of it could be.

    If nobody reads it any more, that is no error.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        mute_stdout()
    except OSError as error:
        lose_stdout(error)
    return not FULL


FULL: list[str] = []
"""Why stdout could not be written; empty while it can."""


def lose_stdout(error: OSError) -> None:
    """Say in a line that stdout can't be written, and let the run go on without it."""
    if not FULL:
        FULL.append(error.strerror or str(error))
        said = f"stdout: can't be written ({FULL[0]}); the run goes on, its report is in its folder"
        print(said, file=sys.stderr)
    mute_stdout()


def mute_stdout() -> None:
    """Point stdout to nowhere, so that no later write or the exit's flush fails."""
    point_to_nowhere(sys.stdout.fileno())


def point_to_nowhere(stream: int) -> None:
    """What is written to this file descriptor from now on is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)
