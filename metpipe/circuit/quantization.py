"""What a checkpoint's quantization_config declares, read or refused by name."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit.errors import RefusedConfig
from metpipe.circuit.precision import Precision, PrecisionRow

__all__ = ["Declared", "declared_precision"]


@dataclass(frozen=True, slots=True)
class Declared:
    """The formats of a checkpoint's weights and of the KV cache that it asks for."""

    precision: Precision
    kv_format: str


def declared_precision(quantization: object, source: str) -> Declared:
    """Read a quantization_config (None: the checkpoint is in bf16 throughout).

    Raises:
        RefusedConfig: its method, or a part of it, is not understood.
    """
    if quantization is None:
        return Declared(Precision(source, (PrecisionRow("*", "bf16"),)), "bf16")
    raise RefusedConfig(f"{source}: quantization_config is not read yet")
