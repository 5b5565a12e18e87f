"""The greedy token of a row of logits, the same on every device.

The definition, over the values widened to FP32: start with index 0 and -inf; a later value wins
only when it is greater. So the lowest index wins a tie, NaN never wins, and a row of -inf or NaN
gives index 0.

Shape suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["argmax", "argmax_rows"]

MAGNITUDE, INFINITY = np.int16(0x7FFF), np.int16(0x7F80)
"""Of bf16: all bits but the sign, and those of infinity; greater ones are NaN."""
MINUS_INFINITY = np.int16(-0x7F81)
"""What -inf is as a key."""
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
    if logits_RV.device.type == "cpu" and logits_RV.dtype == torch.bfloat16:
        return torch.from_numpy(first_greatest(logits_RV.contiguous().view(torch.int16).numpy()))
    values_RV = logits_RV.float()
    values_RV = values_RV.masked_fill(values_RV.isnan(), -torch.inf)
    best_R1 = values_RV.amax(dim=1, keepdim=True)
    # Not torch.argmax: which of equal values it takes is the device's choice.
    vocab_size = values_RV.shape[1]
    index_V = torch.arange(vocab_size, device=values_RV.device)
    return torch.where(values_RV == best_R1, index_V, vocab_size).amin(dim=1)


def first_greatest(bits_RV: npt.NDArray[np.int16]) -> npt.NDArray[np.int64]:
    """The same of bf16 bits on the host: NumPy's argmax takes the first of equal values.

    A float's bits are sign and magnitude. Flipping a negative one's magnitude makes integers that
    sort as the floats do; -0.0 is made +0.0 before, and NaN -inf, which never win.
    """
    magnitude_RV = bits_RV & MAGNITUDE
    keys_RV = bits_RV ^ ((bits_RV >> 15) & MAGNITUDE)
    keys_RV[magnitude_RV == 0] = 0
    keys_RV[magnitude_RV > INFINITY] = MINUS_INFINITY
    first_R: npt.NDArray[np.int64] = keys_RV.argmax(axis=1)
    return first_R


def check(logits_RV: torch.Tensor) -> None:
    if logits_RV.ndim != 2 or logits_RV.shape[1] == 0:
        raise ValueError(f"logits have shape {list(logits_RV.shape)}, not [R, V] with V >= 1.")
    if logits_RV.dtype not in EXACT_IN_FP32:
        raise ValueError(f"logits are {logits_RV.dtype}; FP32 does not hold them exactly.")
