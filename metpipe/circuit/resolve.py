"""From a checkpoint's config.json to its circuit: pick the map, read the shape, instantiate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit.circuit_toml import included_libraries, parse_circuit
from metpipe.circuit.config_map import ConfigMap
from metpipe.circuit.config_map_toml import parse_config_map
from metpipe.circuit.config_reader import resolve_shape
from metpipe.circuit.description import Description
from metpipe.circuit.errors import BadCircuit, RefusedConfig
from metpipe.circuit.formats import parse_format, weight_bytes
from metpipe.circuit.instantiate import instantiate
from metpipe.circuit.ir import Circuit
from metpipe.circuit.precision import Precision
from metpipe.circuit.quantization import declared_precision
from metpipe.circuit.verify import verify
from metpipe.circuit.weights import weight_matrix
from metpipe.errors import ConfigError

__all__ = ["Library", "Resolved", "resolve_checkpoint"]


@dataclass(frozen=True, slots=True)
class Library:
    """Every known architecture: config maps and circuit descriptions."""

    maps: tuple[ConfigMap, ...]
    descriptions: Mapping[str, Description]

    @classmethod
    def parse(
        cls,
        maps: Mapping[str, str],
        circuits: Mapping[str, str],
        blocks: Mapping[str, str],
        keys: Mapping[str, str] | None = None,
    ) -> Library:
        """Read file texts: maps and circuits by file name, blocks and keys by library name.

        Raises:
            BadCircuit: a text does not follow its schema, or a map has no circuit.
        """
        descriptions = {}
        for source, text in circuits.items():
            wanted = included_libraries(text, source)
            used = {name: blocks[name] for name in wanted if name in blocks}
            description = parse_circuit(text, source, used)
            descriptions[description.arch] = description
        parsed = tuple(parse_config_map(text, source, keys) for source, text in maps.items())
        for config_map in parsed:
            if config_map.arch not in descriptions:
                raise BadCircuit(f"{config_map.source}: no circuit has arch {config_map.arch!r}")
        return cls(parsed, descriptions)

    def map_for(self, config: Mapping[str, object], source: str) -> ConfigMap:
        """The config map of a config's model type.

        Raises:
            RefusedConfig: it has no model type, or no architecture is mapped to it.
        """
        model_type = config.get("model_type")
        for candidate in self.maps:
            if model_type in candidate.model_types:
                return candidate.for_model_type(str(model_type))
        known = ", ".join(sorted(name for found in self.maps for name in found.model_types))
        has = f"model_type {model_type!r}" if model_type is not None else "no key 'model_type'"
        raise RefusedConfig(
            f"{source}: has {has}; the model types with a circuit are {known}. Add a config map "
            "and a circuit under kernels/circuits/ for another one"
        )


@dataclass(frozen=True, slots=True)
class Resolved:
    """A checkpoint understood: its circuit, with the weight formats that it declares."""

    arch: str
    model_type: str
    circuit: Circuit
    dims: Mapping[str, int]
    params: Mapping[str, str]
    kv_format: str
    """declared: bf16 or fp8/tensor"""
    precision: Precision
    source: str


def resolve_checkpoint(
    config: Mapping[str, object], *, library: Library, source: str = "config.json"
) -> Resolved:
    """Understand a config.json; `source` says where it came from, for messages.

    Raises:
        RefusedConfig: the model type is unknown, a key is unclassified, missing or asks for what
            the circuit cannot express, or the declared quantization is not understood.
        BadCircuit: the description is no legal circuit.
    """
    found = library.map_for(config, source)
    shape = resolve_shape(config, found, source)
    declared = declared_precision(_quantization(config), source)
    description = library.descriptions[found.arch]
    circuit = instantiate(description, shape, declared.precision)
    try:
        verify(circuit)
    except BadCircuit as problem:
        raise BadCircuit(f"{description.source}: {problem}") from None
    _refuse_groups(circuit, source)
    return Resolved(
        arch=found.arch,
        model_type=str(config["model_type"]),
        circuit=circuit,
        dims=circuit.dims,
        params=circuit.params,
        kv_format=declared.kv_format,
        precision=declared.precision,
        source=source,
    )


def _refuse_groups(circuit: Circuit, source: str) -> None:
    """Every matrix divides into the groups of its declared format."""
    seen = set()
    for node in circuit.nodes:
        if node.weight_format is None or not parse_format(node.weight_format).is_quantised:
            continue
        key = (node.weight_format, *weight_matrix(circuit, node))
        if key in seen:
            continue
        seen.add(key)
        try:
            weight_bytes(*key)
        except ConfigError as problem:
            raise RefusedConfig(
                f"{source}: quantization_config: {problem} ({', '.join(node.binding)}); correct "
                "its group size, or leave these modules alone"
            ) from None


def _quantization(config: Mapping[str, object]) -> object:
    """The quantization_config, with what some configs say of the experts beside it."""
    table, experts = config.get("quantization_config"), config.get("expert_dtype")
    if experts is None or not isinstance(table, Mapping) or "expert_dtype" in table:
        return table
    return {**table, "expert_dtype": experts}
