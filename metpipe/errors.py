"""What can go wrong in a way that the user can mend, and the exit status of each outcome."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ConfigError", "Exit"]


class Exit(IntEnum):
    """The process's exit status; a sweep exits with the gravest of its jobs (see `gravest`)."""

    PASS = 0
    """Every judged comparison was equal and every control behaved."""
    FAIL = 1
    """A judged difference, a byte moved that its step does not own, or a control that leaked."""
    USAGE = 2
    """The configuration or an input is wrong."""
    DIED = 3
    """A run died: a bug, or the machine failed."""
    INCONCLUSIVE = 4
    """Nothing was proven: a repeat that differs, a blind control, a vacuous comparison."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


GRAVITY = (Exit.INTERRUPTED, Exit.DIED, Exit.USAGE, Exit.FAIL, Exit.INCONCLUSIVE, Exit.PASS)


def gravest(statuses: list[Exit]) -> Exit:
    """The first of 130, 3, 2, 1, 4, 0 that is present; USAGE when there is none at all."""
    return next((status for status in GRAVITY if status in statuses), Exit.USAGE)


class ConfigError(Exception):
    """The configuration or an input is wrong: what, where it was set, what to do. Exit status 2."""
