"""What a checkpoint's quantization_config declares, read or refused by name.

Read: `compressed-tensors`, `fp8` (blocks), `modelopt` (NVFP4, FP8, mixed) and `mxfp4`. A weight's
format is its storage; what an engine serves may differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metpipe.circuit.errors import RefusedConfig
from metpipe.circuit.precision import Precision, PrecisionRow

__all__ = ["Declared", "declared_precision"]

METHODS = ("compressed-tensors", "fp8", "modelopt", "mxfp4")
MODELOPT = {
    "NVFP4": ("nvfp4/g{group}", "nvfp4/g{group}"),
    "W4A16_NVFP4": ("nvfp4/g{group}", "bf16"),
    "FP8": ("fp8/tensor", "fp8/tensor"),
}
"""quant_algo -> weight and activation format"""
SIZE = re.compile("[1-9][0-9]{0,9}")
NVFP4_GROUP = 16
"""The group that the NVFP4 algorithm has where a modelopt export does not say so."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The formats of a checkpoint's weights, and of the KV cache that it asks for."""

    precision: Precision
    kv_format: str


def declared_precision(quantization: object, source: str) -> Declared:
    """Read a quantization_config (None: the checkpoint is in bf16 throughout).

    Raises:
        RefusedConfig: its method, or a part of it, is not understood.
    """
    where = f"{source}: quantization_config"
    if quantization is None:
        return Declared(Precision(source, (PrecisionRow("*", "bf16"),)), "bf16")
    if not isinstance(quantization, Mapping):
        raise RefusedConfig(f"{where} must be an object")
    method = quantization.get("quant_method")
    match method:
        case "compressed-tensors":
            rows = _compressed_tensors(quantization, where)
        case "fp8":
            rows = _block_fp8(quantization, where)
        case "modelopt":
            rows = _modelopt(quantization, where)
        case "mxfp4":
            left_alone = _ignored(quantization.get("modules_to_not_convert"), where)
            rows = [*left_alone, PrecisionRow("*", "mxfp4/g32")]
        case _:
            raise RefusedConfig(
                f"{where} has quant_method {method!r}; {', '.join(METHODS)} are understood"
            )
    _refuse_patterns(rows, where)
    precision = Precision(where, (*rows, PrecisionRow("*", "bf16")))
    return Declared(precision, _kv_format(quantization, where))


def _refuse_patterns(rows: Sequence[PrecisionRow], where: str) -> None:
    for row in rows:
        try:
            row.covers("")
        except (re.error, OverflowError, RecursionError) as problem:
            raise RefusedConfig(
                f"{where}: {row.match!r} is no regular expression ({problem}); correct it where "
                "the targets and the modules left alone are listed"
            ) from None


def _compressed_tensors(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    return [*_left_alone(table.get("ignore"), where), *_groups(table, where)]


def _groups(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    groups = table.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise RefusedConfig(f"{where} has no config_groups")
    rows = [row for name, value in groups.items() for row in _group(value, f"{where}, {name}")]
    return [*rows, *_within_containers(rows)]


def _within_containers(rows: Sequence[PrecisionRow]) -> list[PrecisionRow]:
    """A container of experts, named, covers those that nobody names."""
    return [
        PrecisionRow(f"{row.match}.*", row.weight, row.activation)
        for row in rows
        if row.match.endswith(".experts")
    ]


def _group(value: object, where: str) -> list[PrecisionRow]:
    """A row per target."""
    group = _object(value, where, "the group")
    weight = _weight_format(_object(group.get("weights"), where, "weights"), where)
    activation = _activation_format(group.get("input_activations"), where)
    return [
        PrecisionRow("*" if target == "Linear" else target, weight, activation)
        for target in _texts(group.get("targets"), where, "targets")
    ]


def _block_fp8(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    block = table.get("weight_block_size")
    if (
        not isinstance(block, list)
        or [type(size) for size in block] != [int, int]
        or min(block) < 1
    ):
        raise RefusedConfig(
            f"{where}: weight_block_size = {block!r} must be [rows, columns], both at least 1"
        )
    rows = _ignored(table.get("modules_to_not_convert"), where)
    over = _quantised_layers(table, where)  # an export of some layers over this base
    experts = _expert_dtype(table, where)
    return [*over, *rows, *experts, PrecisionRow("*", f"fp8/block{block[0]}x{block[1]}")]


def _expert_dtype(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    """Routed experts in a format of their own: fp4 has a power of two for every 32 values."""
    match table.get("expert_dtype"):
        case None | "fp8":
            return []
        case "fp4":
            return [PrecisionRow("*.experts.*", "mxfp4/g32")]
        case other:
            raise RefusedConfig(f"{where}: expert_dtype = {other!r}; fp4 and fp8 are understood")


def _modelopt(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    ignored = [
        *_ignored(table.get("exclude_modules"), where),
        *_ignored(table.get("ignore"), where),
    ]
    if table.get("quantized_layers"):
        return [*ignored, *_quantised_layers(table, where)]
    if table.get("config_groups"):
        return [*ignored, *_groups(_with_strategies(table, where), where)]
    return [*ignored, _algorithm("*", table, where)]


def _quantised_layers(table: Mapping[str, object], where: str) -> list[PrecisionRow]:
    """A row per module of a mixed export."""
    stated = table.get("quantized_layers")
    layers = {} if stated is None else _object(stated, where, "quantized_layers")
    rows = [
        _algorithm(name, _object(value, where, name), f"{where}, {name}")
        for name, value in layers.items()
    ]
    return [*rows, *_within_containers(rows)]


def _algorithm(match: str, table: Mapping[str, object], where: str) -> PrecisionRow:
    algorithm = table.get("quant_algo")
    if algorithm not in MODELOPT:
        raise RefusedConfig(
            f"{where} has quant_algo {algorithm!r}; {', '.join(MODELOPT)} are understood"
        )
    stated = table.get("group_size") is not None
    group = _group_size(table, where) if stated else NVFP4_GROUP
    weight, activation = (text.format(group=group) for text in MODELOPT[str(algorithm)])
    return PrecisionRow(match, weight, activation)


def _with_strategies(table: Mapping[str, object], where: str) -> dict[str, object]:
    """Its schemes state none: 8 bits have a scale per tensor, 4 bits one per group."""
    groups = {}
    for name, value in _object(table["config_groups"], where, "config_groups").items():
        group = dict(_object(value, f"{where}, {name}", "the group"))
        for part in ("weights", "input_activations"):
            scheme = group.get(part)
            if isinstance(scheme, Mapping) and "strategy" not in scheme:
                strategy = "group" if scheme.get("num_bits") == 4 else "tensor"
                group[part] = {**scheme, "strategy": strategy}
        groups[name] = group
    return {**table, "config_groups": groups}


def _left_alone(modules: object, where: str) -> list[PrecisionRow]:
    """Exactly the modules named: compressed-tensors lists `linear_attn` beside what is in it."""
    if modules is None:
        return []
    return [PrecisionRow(name, "bf16") for name in _texts(modules, where, "the modules left alone")]


def _ignored(modules: object, where: str) -> list[PrecisionRow]:
    """A module that is left alone leaves its inner modules alone as well."""
    rows = []
    for row in _left_alone(modules, where):
        rows.append(row)
        if not row.match.startswith("re:"):
            rows.append(PrecisionRow(f"{row.match}.*", "bf16"))
    return rows


def _weight_format(scheme: Mapping[str, object], where: str) -> str:
    kind, bits, strategy = scheme.get("type"), scheme.get("num_bits"), scheme.get("strategy")
    match (kind, bits, strategy):
        case ("float", 4, "group" | "tensor_group"):
            return f"nvfp4/g{_group_size(scheme, where)}"
        case ("float", 8, "tensor" | "channel"):
            return f"fp8/{strategy}"
        case ("float", 8, "group"):
            return f"fp8/g{_group_size(scheme, where)}"
        case ("float", 8, "block"):
            rows, columns = _block(scheme.get("block_structure"), where)
            return f"fp8/block{rows}x{columns}"
    raise RefusedConfig(
        f"{where}: weights of type {kind!r}, {bits} bits, strategy {strategy!r} have no format "
        "here; 4-bit floats in groups and 8-bit floats by tensor, channel, group or block have"
    )


def _activation_format(scheme: object, where: str) -> str:
    if scheme is None:
        return "bf16"
    table = _object(scheme, where, "input_activations")
    kind, bits, strategy = table.get("type"), table.get("num_bits"), table.get("strategy")
    match (kind, bits, strategy):
        case ("float", 4, "group" | "tensor_group"):
            return f"nvfp4/g{_group_size(table, where)}"
        case ("float", 8, "tensor" | "token"):
            return f"fp8/{strategy}"
        case ("float", 8, "group"):
            return f"fp8/g{_group_size(table, where)}"
    raise RefusedConfig(
        f"{where}: activations of type {kind!r}, {bits} bits, strategy {strategy!r} have no format"
    )


def _kv_format(table: Mapping[str, object], where: str) -> str:
    scheme, algorithm = table.get("kv_cache_scheme"), table.get("kv_cache_quant_algo")
    if scheme is None and algorithm is None:
        return "bf16"
    stated = scheme if isinstance(scheme, Mapping) else {}
    if algorithm == "FP8" or (stated.get("type"), stated.get("num_bits")) == ("float", 8):
        return "fp8/tensor"
    raise RefusedConfig(f"{where}: the KV cache's {scheme or algorithm!r} is not understood")


def _group_size(scheme: Mapping[str, object], where: str) -> int:
    size = scheme.get("group_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise RefusedConfig(f"{where}: group_size = {size!r} must be a positive number")
    return size


def _block(structure: object, where: str) -> tuple[int, int]:
    """`[128, 128]` or `"128x128"`."""
    parts: Sequence[object] = structure.split("x") if isinstance(structure, str) else ()
    if isinstance(structure, list):
        parts = structure
    if len(parts) != 2 or not all(SIZE.fullmatch(str(part)) for part in parts):
        raise RefusedConfig(
            f"{where}: block_structure = {structure!r} must be [rows, columns], both at least 1"
        )
    return int(str(parts[0])), int(str(parts[1]))


def _object(value: object, where: str, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise RefusedConfig(f"{where}: {name} must be an object, it is {value!r}")
    return value


def _texts(value: object, where: str, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RefusedConfig(f"{where}: {name} must be a list of names, it is {value!r}")
    return value
