"""What a person sees while stages run: a bar each on a terminal, a line each elsewhere."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

__all__ = ["Board", "LineBoard", "Progress", "board"]


class Progress(Protocol):
    """How far one stage is."""

    def total(self, n: int) -> None:
        """Say how many units of work there are."""

    def advance(self, n: int = 1) -> None:
        """Say that `n` more units are done."""


class Board(Protocol):
    """Shows the stages of one run."""

    def start(self, stage: str) -> Progress:
        """A stage begins."""

    def settle(self, stage: str, how: str, seconds: float, error: str | None) -> None:
        """A stage is settled: ran, cached, failed or skipped."""

    def close(self) -> None:
        """No more stages."""


class Silent:
    """Progress that nobody watches."""

    def total(self, n: int) -> None:
        """Nothing to show."""

    def advance(self, n: int = 1) -> None:
        """Nothing to show."""


class LineBoard:
    """One line per settled stage: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, stage: str) -> Progress:
        """Nothing is printed until the stage is settled."""
        return Silent()

    def settle(self, stage: str, how: str, seconds: float, error: str | None) -> None:
        """Print the stage's line."""
        line = Text.assemble(f"{stage:<{NAME}} ", (f"{how:<8}", STYLES[how]), _time(how, seconds))
        if error:
            line.append(f"  {error}", style="red")
        self.console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Nothing is open."""


NAME = 38
"""Columns of a stage's name: `verify_batch:control:circuit_reference`."""
STYLES = {"ran": "green", "cached": "cyan", "failed": "bold red", "skipped": "yellow"}


def _time(how: str, seconds: float) -> str:
    return f"{seconds:7.2f} s" if how in ("ran", "failed") else ""


class Bar:
    """One stage's bar."""

    def __init__(self, bars: Bars, task: TaskID) -> None:
        self.bars, self.task = bars, task

    def total(self, n: int) -> None:
        """Set the bar's length."""
        self.bars.update(self.task, total=n)

    def advance(self, n: int = 1) -> None:
        """Move the bar."""
        self.bars.advance(self.task, n)


class BarBoard:
    """The running stage as a bar; settled stages as lines above it."""

    def __init__(self, console: Console) -> None:
        self.lines = LineBoard(console)
        self.bars = Bars(
            TextColumn(f"{{task.description:<{NAME}}}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.bars.start()

    def start(self, stage: str) -> Progress:
        """Open the stage's bar."""
        return Bar(self.bars, self.bars.add_task(stage, total=None))

    def settle(self, stage: str, how: str, seconds: float, error: str | None) -> None:
        """Turn the bar into a line."""
        for task in list(self.bars.task_ids):
            self.bars.remove_task(task)
        self.lines.settle(stage, how, seconds, error)

    def close(self) -> None:
        """Give the terminal back."""
        self.bars.stop()


def board(console: Console) -> Board:
    """Bars on a terminal, lines elsewhere."""
    return BarBoard(console) if console.is_terminal else LineBoard(console)
