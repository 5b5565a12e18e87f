"""A model's sizes as the arena formulas name them; what a family lacks is 0 (section 15).

Some families have parts that no formula speaks of; `gaps_of` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit import Circuit
from metpipe.errors import ConfigError

__all__ = ["SSM_FORMAT", "ModelShape", "gaps_of", "shape_of"]

UNKNOWN_OPS: Mapping[str, str] = {
    "mla_attention": "latent attention",
    "compressed_attention": "compressed attention",
    "hc_pre": "hyper-connections",
    "index_select": "an index of keys",
    "kpool_compress": "pooled keys",
}
"""Ops whose buffers no formula gives -> what they are."""

SSM_FORMAT = "{ssm_h_storage}"
"""The format of the state that every state space layer keeps."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Widths and counts. `recurrent` says whether there is a state space layer.

    A ring of keys (DeepSeek V4) lives in a slot as well, and makes no such layer.
    """

    hidden: int
    vocab: int
    q_heads: int
    kv_heads: int
    head_dim: int
    gated_queries: bool
    position_axes: int
    """3 where positions have interleaved axes (time, height, width), else 1"""
    inter: int
    experts: int
    top_k: int
    moe_inter: int
    shared_inter: int
    moe_io: int
    """width in which routed experts run"""
    moe_latent: int
    """the same where it is a latent one, between two projections, else 0"""
    lin_k_heads: int
    lin_k_dim: int
    lin_v_heads: int
    lin_v_dim: int
    mamba_heads: int
    mamba_head_dim: int
    ssm_state: int
    ssm_groups: int
    recurrent: bool

    @property
    def qkvz(self) -> int:
        """Query, key, value and z of a delta net."""
        return 2 * self.lin_k_heads * self.lin_k_dim + 2 * self.lin_values

    @property
    def conv(self) -> int:
        """Channels that a delta net's convolution sees."""
        return 2 * self.lin_k_heads * self.lin_k_dim + self.lin_values

    @property
    def lin_values(self) -> int:
        """Value channels of a delta net."""
        return self.lin_v_heads * self.lin_v_dim

    @property
    def mamba_inner(self) -> int:
        """Inner channels of a Mamba2 layer."""
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_xbc(self) -> int:
        """Channels that a Mamba2 layer's convolution sees."""
        return self.mamba_inner + 2 * self.ssm_groups * self.ssm_state

    @property
    def mamba_in(self) -> int:
        """z, x, B, C and dt of a Mamba2 layer."""
        return self.mamba_inner + self.mamba_xbc + self.mamba_heads

    @property
    def is_square(self) -> bool:
        """Delta nets whose heads are 128 x 128, as the chunked kernels and the carry want them."""
        return self.lin_v_heads > 0 and self.lin_k_dim == self.lin_v_dim == 128


def shape_of(circuit: Circuit) -> ModelShape:
    """The sizes of a circuit; of one with gaps, those that it has.

    Raises:
        ConfigError: it lacks a dim that the formulas need.
    """
    dims, has_gaps = circuit.dims, bool(gaps_of(circuit))
    is_moe, is_latent = bool(dims.get("experts")), bool(dims.get("moe_latent"))
    moe_io = dims.get("moe_io", dims["hidden"]) if is_moe else 0
    return ModelShape(
        **{name: _needed(circuit, name) for name in ALWAYS},
        **{name: dims.get(name, 0) if has_gaps else _needed(circuit, name) for name in ATTENTION},
        **{name: dims.get(name, 0) for name in SOMETIMES},
        gated_queries=any(node.op == "sigmoid_gate_mul" for node in circuit.nodes),
        position_axes=3 if _has_interleaved_axes(circuit) else 1,
        moe_io=moe_io,
        moe_latent=moe_io if is_latent else 0,
        recurrent=any(state.format == SSM_FORMAT for state in circuit.states.values()),
    )


def gaps_of(circuit: Circuit) -> tuple[str, ...]:
    """What no formula of the arena speaks of: an op, or attention of more than one width."""
    ops = {node.op for node in circuit.nodes}
    gaps = [UNKNOWN_OPS[op] for op in sorted(ops & set(UNKNOWN_OPS))]
    outputs = [node for node in circuit.nodes if node.role == "o"]
    if len({circuit.edges[node.inputs[0]].dim for node in outputs}) > 1:
        gaps.append("attention of several widths")
    return tuple(gaps)


ALWAYS = ("hidden", "vocab", "q_heads")
ATTENTION = ("kv_heads", "head_dim")
"""Dims of attention that keeps keys and values by heads."""
SOMETIMES = (
    "inter", "experts", "top_k", "moe_inter", "shared_inter",
    "lin_k_heads", "lin_k_dim", "lin_v_heads", "lin_v_dim",
    "mamba_heads", "mamba_head_dim", "ssm_state", "ssm_groups",
)  # fmt: skip
"""Dims that only some families have; one that is absent is a part that is absent."""


def _needed(circuit: Circuit, name: str) -> int:
    if name not in circuit.dims:
        raise ConfigError(
            f"memory.accounting=met: the arena needs the dim {name!r}, which {circuit.arch} lacks"
        )
    return circuit.dims[name]


def _has_interleaved_axes(circuit: Circuit) -> bool:
    return any(node.params.get("axes") == "mrope_interleaved" for node in circuit.nodes)
