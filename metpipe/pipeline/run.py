"""Runs a graph of stages: each once, from its kept result if there is one, failures contained."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from metpipe.pipeline.content_key import keys
from metpipe.pipeline.graph import PlanError, Stage, StageContext, order
from metpipe.pipeline.progress import Board
from metpipe.pipeline.store import DIGEST, RESULT, STAGE, Store, digest_of, write_json

__all__ = ["Event", "How", "Pipeline"]

How: TypeAlias = Literal["ran", "cached", "failed", "skipped"]


class Event(NamedTuple):
    """How one stage was settled; `error` is the exception of a failed one."""

    stage: str
    how: How
    seconds: float
    error: Exception | None = None


class Pipeline:
    """The stages of one run, their order, and the key of each one's result."""

    def __init__(self, stages: Sequence[Stage], *, facts: Mapping[str, object]) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self.order = order(stages)
        self.keys = keys(stages, self.order, facts)

    def run(
        self, store: Store, board: Board, *, live: object = None, resume: Sequence[Store] = ()
    ) -> Iterator[Event]:
        """Yield how each stage is settled, in order.

        A stage that raises fails, what needs it is skipped, the rest goes on. An interrupt passes
        through; finished results stay. A result in `store`, or in one of `resume`, is taken.
        """
        unusable: set[str] = set()
        for name in self.order:
            if unusable & set(self.stages[name].needs):
                event = Event(name, "skipped", 0.0)
            else:
                event = self._settle(name, store, board, live, resume)
            if event.how in ("failed", "skipped"):
                unusable.add(name)
            board.settle(name, event.how, event.seconds, _line(event.error))
            yield event

    def result(self, store: Store, name: str) -> dict[str, Any]:
        """The record that a settled stage returned."""
        return store.result(self.keys[name])

    def path(self, store: Store, name: str) -> Path:
        """The folder of a settled stage's result."""
        return store.path(self.keys[name])

    def _settle(
        self, name: str, store: Store, board: Board, live: object, resume: Sequence[Store]
    ) -> Event:
        key, begin = self.keys[name], time.perf_counter()
        with store.claimed(key):
            if store.has(key):
                return Event(name, "cached", 0.0)
            if (kept := next((other for other in resume if other.has(key)), None)) is not None:
                store.adopt(key, kept)
                return Event(name, "cached", 0.0)
            try:
                self._work(name, store, board, live)
            except Exception as error:
                return Event(name, "failed", time.perf_counter() - begin, error)
        return Event(name, "ran", time.perf_counter() - begin)

    def _work(self, name: str, store: Store, board: Board, live: object) -> None:
        stage, begin = self.stages[name], time.perf_counter()
        inputs = {need: store.path(self.keys[need]) for need in stage.needs}
        with store.scratch(self.keys[name]) as out:
            record = stage.work(StageContext(out, stage.params, inputs, board.start(name), live))
            if not isinstance(record, Mapping):
                raise PlanError(f"stage {name!r} returned {type(record).__name__}, not a record")
            write_json(out / RESULT, record)
            about = self._about(stage, time.perf_counter() - begin)
            write_json(out / STAGE, about | {DIGEST: digest_of(out / RESULT)})

    def _about(self, stage: Stage, seconds: float) -> dict[str, object]:
        return {
            "name": stage.name,
            "key": self.keys[stage.name],
            "params": dict(stage.params),
            "needs": {need: self.keys[need] for need in stage.needs},
            "seconds": seconds,
            "host": platform.node(),
            "pid": os.getpid(),
        }


def _line(error: Exception | None) -> str | None:
    if error is None:
        return None
    return next(iter(str(error).splitlines()), None) or type(error).__name__
