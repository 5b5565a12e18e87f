"""What an op may be given at all: numbers of experts, decays, step sizes.

Outside its domain a recurrence grows without bound, and all that is compared is infinite.
"""

from __future__ import annotations

import math

import torch

from metpipe.circuit import Node
from metpipe.circuit.vocabulary import OPS
from metpipe.engine.microtest.places import Place

__all__ = ["chosen_experts", "in_domain"]


def chosen_experts(place: Place, ids: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    """Distinct experts for each row of ids [rows, top_k] (i32); most rows choose the last one.

    Raises:
        AssertionError: the group reads integers that are no experts.
    """
    assert any(OPS[node.op].per_expert for node in place.nodes), "only experts are numbered"
    rows, top_k = ids.shape
    scores = torch.rand(rows, place.circuit.dims["experts"], generator=g)
    scores[:, -1] += torch.rand(rows, generator=g) < 0.9
    scores[0, 0] += 1
    return scores.topk(top_k).indices.to(ids.dtype)


def in_domain(place: Place, label: str, values: torch.Tensor) -> torch.Tensor:
    """The values, moved to where a model's would lie if one of the group's ops needs it."""
    for node in place.nodes:
        if node.op == "gdn_recurrence" and label in node.inputs:
            return _of_recurrence(node, node.inputs.index(label), values)
    return values


def _of_recurrence(node: Node, index: int, values: torch.Tensor) -> torch.Tensor:
    """Heads of q and k about as long as their norm makes them, decays that are, steps below 1."""
    match index:
        case 0:
            dim = int(node.params["k_dim"])
            normed = 2 * int(node.params["k_heads"]) * dim
            # By a power of two: the bits of a mantissa stay.
            values[:, :normed] *= 2.0 ** -round(math.log2(dim) / 2)
            return values
        case 1:
            return -values.abs()
        case _:
            return values.sigmoid()
