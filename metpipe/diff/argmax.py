"""The greedy token of a row of logits, the same on every device.

The definition, over the values widened to FP32: start with index 0 and -inf; a later value wins
only when it is greater. So the lowest index wins a tie, NaN never wins, and a row of -inf or NaN
gives index 0.

Shape suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

__all__ = ["argmax", "argmax_rows"]

EXACT_IN_FP32 = (torch.bfloat16, torch.float16, torch.float32)


def argmax(logits_V: torch.Tensor) -> int:
    """The greedy token of one row.

    Raises ValueError on another shape, an empty row, or a dtype that FP32 does not hold exactly.
    """
    if logits_V.ndim != 1:
        raise ValueError(f"logits have shape {list(logits_V.shape)}, not [V].")
    return int(argmax_rows(logits_V[None])[0])


def argmax_rows(logits_RV: torch.Tensor) -> torch.Tensor:
    """The greedy token of each row: int64 [R], on the device of the logits.

    Raises ValueError on another shape, empty rows, or a dtype that FP32 does not hold exactly.
    """
    check(logits_RV)
    values_RV = logits_RV.float()
    values_RV = values_RV.masked_fill(values_RV.isnan(), -torch.inf)
    best_R1 = values_RV.amax(dim=1, keepdim=True)
    # Not torch.argmax: which of equal values it takes is the device's choice.
    vocab_size = values_RV.shape[1]
    index_V = torch.arange(vocab_size, device=values_RV.device)
    return torch.where(values_RV == best_R1, index_V, vocab_size).amin(dim=1)


def check(logits_RV: torch.Tensor) -> None:
    if logits_RV.ndim != 2 or logits_RV.shape[1] == 0:
        raise ValueError(f"logits have shape {list(logits_RV.shape)}, not [R, V] with V >= 1.")
    if logits_RV.dtype not in EXACT_IN_FP32:
        raise ValueError(f"logits are {logits_RV.dtype}; FP32 does not hold them exactly.")
