"""A step captured once as a CUDA graph, and replayed: the host launches all its kernels at once.

What a step reads and writes stays where it is (weights, pools, arena, step inputs), so that a
replay is the step with whatever its inputs hold then.
"""

from __future__ import annotations

import torch

from metpipe.engine.program import Launch

__all__ = ["capture"]


def capture(run: Launch) -> Launch:
    """The step as a graph. Capturing runs nothing; its kernels were compiled when they were bound.

    On the current stream the replay stands behind what was enqueued before it.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
