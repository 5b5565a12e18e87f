"""A step captured once as a CUDA graph, and replayed: the host launches all its kernels at once.

What a step reads and writes stays where it is (weights, pools, arena, step inputs), so that a
replay is the step with whatever its inputs hold then.
"""

from __future__ import annotations

import torch

from metpipe.engine.program import Launch

__all__ = ["Captured", "capture"]


class Captured:
    """A captured step: calling it replays it, which is counted."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph
        self.replays = 0

    def __call__(self) -> None:
        self.replays += 1
        self._graph.replay()


def capture(run: Launch) -> Captured:
    """The step as a graph. Capturing runs nothing; its kernels were compiled when they were bound.

    On the current stream the replay stands behind what was enqueued before it.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return Captured(graph)
