"""Stages as data: a graph of them, a content key for each result, run and resume, progress."""

from __future__ import annotations

from metpipe.pipeline.content_key import code_digest
from metpipe.pipeline.graph import PlanError, Stage, StageContext, Work
from metpipe.pipeline.progress import Board, LineBoard, Progress, board
from metpipe.pipeline.run import Event, How, Pipeline
from metpipe.pipeline.store import Store

__all__ = [
    "Board",
    "Event",
    "How",
    "LineBoard",
    "Pipeline",
    "PlanError",
    "Progress",
    "Stage",
    "StageContext",
    "Store",
    "Work",
    "board",
    "code_digest",
]
