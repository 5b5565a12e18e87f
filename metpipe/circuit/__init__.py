"""The model as a graph of typed ops, the rules that fuse it, and the plans that result. Pure."""

from __future__ import annotations

from metpipe.circuit.buckets import Bucket, row_buckets
from metpipe.circuit.circuit_toml import parse_circuit
from metpipe.circuit.config_map import ConfigMap
from metpipe.circuit.config_map_toml import parse_config_map
from metpipe.circuit.description import Description
from metpipe.circuit.digest import plan_digest, plan_text, plans_digest, rules_digest
from metpipe.circuit.dims import Expr, parse_expr
from metpipe.circuit.errors import (
    BadArgument,
    BadCircuit,
    Cycle,
    EmptySection,
    FormatConflict,
    MissingKernel,
    PolicyMissing,
    RefusedConfig,
    RuleFileError,
    Uncovered,
    UnknownRule,
    ZeroRows,
)
from metpipe.circuit.formats import Format, element_bytes, parse_format, tensor_bytes, weight_bytes
from metpipe.circuit.fuse import fuse
from metpipe.circuit.fusions_toml import parse_fusions
from metpipe.circuit.hardware_toml import Hardware, parse_hardware
from metpipe.circuit.instantiate import Shape, instantiate
from metpipe.circuit.ir import BlockInstance, BoundTensor, Circuit, Edge, Node, StateDecl
from metpipe.circuit.layout import Layout, Place, layout, live_ranges
from metpipe.circuit.load import (
    circuit_from_config,
    class_sizes_of,
    read_library,
    read_rules,
    resolve_from_config,
)
from metpipe.circuit.padding import LADDER, padded_rows
from metpipe.circuit.plan import Group, Plan, edge_rows
from metpipe.circuit.precision import BF16, Precision, PrecisionRow
from metpipe.circuit.resolve import Library, Resolved, resolve_checkpoint
from metpipe.circuit.rules import Element, Kernel, Numerics, Rule, RuleSet, Runtime
from metpipe.circuit.runs import RowTable, Run
from metpipe.circuit.shard import Ranks, layers_of, shard
from metpipe.circuit.situation import Select, Situation
from metpipe.circuit.sources import Source
from metpipe.circuit.text import golden_name, golden_text
from metpipe.circuit.verify import verify
from metpipe.circuit.weights import is_outside, node_weight_shapes, weight_matrix

__all__ = [
    "BF16",
    "LADDER",
    "BadArgument",
    "BadCircuit",
    "BlockInstance",
    "BoundTensor",
    "Bucket",
    "Circuit",
    "ConfigMap",
    "Cycle",
    "Description",
    "Edge",
    "Element",
    "EmptySection",
    "Expr",
    "Format",
    "FormatConflict",
    "Group",
    "Hardware",
    "Kernel",
    "Layout",
    "Library",
    "MissingKernel",
    "Node",
    "Numerics",
    "Place",
    "Plan",
    "PolicyMissing",
    "Precision",
    "PrecisionRow",
    "Ranks",
    "RefusedConfig",
    "Resolved",
    "RowTable",
    "Rule",
    "RuleFileError",
    "RuleSet",
    "Run",
    "Runtime",
    "Select",
    "Shape",
    "Situation",
    "Source",
    "StateDecl",
    "Uncovered",
    "UnknownRule",
    "ZeroRows",
    "circuit_from_config",
    "class_sizes_of",
    "edge_rows",
    "element_bytes",
    "fuse",
    "golden_name",
    "golden_text",
    "instantiate",
    "is_outside",
    "layers_of",
    "layout",
    "live_ranges",
    "node_weight_shapes",
    "padded_rows",
    "parse_circuit",
    "parse_config_map",
    "parse_expr",
    "parse_format",
    "parse_fusions",
    "parse_hardware",
    "plan_digest",
    "plan_text",
    "plans_digest",
    "read_library",
    "read_rules",
    "resolve_checkpoint",
    "resolve_from_config",
    "row_buckets",
    "rules_digest",
    "shard",
    "tensor_bytes",
    "verify",
    "weight_bytes",
    "weight_matrix",
]
