"""The closed vocabulary: ops with their signatures, roles, kinds, modes. All else is refused.

A new family may add blocks as data; a new op is a row here and a kernel in a set.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BUFFERS",
    "KEYED_FORMATS",
    "LAYER_KINDS",
    "LIFETIMES",
    "LINEAR_ROLES",
    "MODES",
    "NORMS",
    "OPS",
    "READS_INTEGERS",
    "STATE_ACCESS",
    "VERIFY_KINDS",
    "WEIGHT_FORMS",
    "Mode",
    "Op",
]


@dataclass(frozen=True, slots=True)
class Op:
    """The signature of an op: how many edges it reads and writes, and what it binds."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    weight: str = "none"
    """none | matrix (precision is asked) | table | vector | tensors"""
    heavy: bool = False
    """opaque: fused only at its edges"""
    per_expert: bool = False
    """its matrix exists once per expert; modules are bound with `*` for the expert's number"""
    widths: str = "free"
    """free | same (all edges as wide) | halves (reads gate||up, writes half)"""


def _op(reads: int, writes: int, **traits: object) -> Op:
    return Op((reads, reads), (writes, writes), **traits)  # type: ignore[arg-type]


OPS: dict[str, Op] = {
    "embed": _op(0, 1, weight="table"),
    "rms_norm": _op(1, 1, weight="vector", widths="same"),
    "final_norm": _op(1, 1, weight="vector", widths="same"),
    "layer_norm": _op(1, 1, weight="vector", widths="same"),
    "gated_rms_norm": _op(2, 1, weight="vector"),
    "qk_norm": _op(1, 1, weight="vector", widths="same"),
    "residual_add": _op(2, 1, widths="same"),
    "scalar_mul": _op(1, 1, weight="tensors", widths="same"),
    "copy": _op(1, 1, widths="same"),
    "concat": Op((2, 16), (1, 1)),
    "split": Op((1, 1), (2, 16)),
    "linear": Op((1, 1), (1, 4), weight="matrix", heavy=True),
    "silu_mul": _op(1, 1, widths="halves"),
    "gelu_tanh_mul": _op(1, 1, widths="halves"),
    "relu2": _op(1, 1, widths="same"),
    "swiglu_clamp": _op(1, 1, widths="halves"),
    "act_quant": _op(1, 1, widths="same"),
    "rope": Op((1, 2), (1, 2), widths="pairs"),
    "kv_write": Op((1, 2), (0, 0)),
    "paged_attention": Op((1, 3), (1, 1), weight="tensors", heavy=True),
    "mla_attention": Op((1, 2), (1, 1), weight="matrix", heavy=True),
    "compressed_attention": Op((1, 2), (1, 1), weight="tensors", heavy=True),
    "sigmoid_gate_mul": _op(2, 1, widths="same"),
    "gdn_gates": Op((1, 2), (1, 2), weight="tensors"),
    "conv1d_update": _op(1, 1, weight="tensors"),
    "l2_norm": _op(1, 1, widths="same"),
    "gdn_recurrence": Op((3, 3), (1, 1), heavy=True),
    "ssm_update": Op((2, 2), (1, 1), weight="tensors", heavy=True),
    "state_snapshot": _op(1, 0),
    "router": _op(1, 1, weight="matrix", heavy=True),
    "top_k": _op(1, 2, weight="tensors"),
    "expert_gate_up": _op(2, 1, weight="matrix", heavy=True, per_expert=True),
    "expert_down": _op(2, 1, weight="matrix", heavy=True, per_expert=True),
    "blend": Op((2, 4), (1, 1)),
    "ep_reduce": _op(1, 1, widths="same"),
    "lm_head": _op(1, 1, weight="matrix", heavy=True),
    "logit_softcap": _op(1, 1, widths="same"),
    "argmax": _op(1, 1),
    "kpool_compress": Op((1, 2), (0, 1), weight="tensors"),
    "index_select": _op(2, 1, heavy=True),
    "hc_expand": _op(1, 1),
    "hc_pre": Op((2, 2), (1, 3), weight="tensors", heavy=True),
    "hc_post": Op((2, 4), (1, 1)),
    "hc_contract": Op((1, 2), (1, 1), weight="tensors"),
}

NORMS = frozenset({"rms_norm", "final_norm", "gated_rms_norm", "qk_norm"})
"""Ops that must state the form of their weight."""

WEIGHT_FORMS = frozenset({"plain", "one_plus", "none"})
"""w' = w, 1 + w, 1."""

# fmt: off
LINEAR_ROLES = frozenset({
    "q", "k", "v", "o", "gate_up", "down", "qkvz", "ba", "gdn_out", "mtp_fc",
    "shared_gate_up", "shared_up", "shared_down", "shared_gate", "moe_latent_in", "moe_latent_out",
    "mamba_in", "mamba_out", "kda_b", "kda_f_a", "kda_f_b", "kda_g_a", "kda_g_b",
    "mla_q_a", "mla_q_b", "mla_kv_a", "index_q", "index_k", "index_weights", "index_gate",
    "hc_mix", "compress_kv", "compress_gate", "o_group",
})

LAYER_KINDS = frozenset({
    "full_attention", "linear_attention", "sliding_attention", "mamba", "moe",
    "deepseek_sparse_attention", "compressed_sparse_attention", "heavily_compressed_attention",
})
# fmt: on

BUFFERS = frozenset({"logits", "tokens", "draft_embed", "hidden"})

STATE_ACCESS: dict[str, frozenset[str]] = {
    "recurrent": frozenset({"read", "write", "update", "snapshot"}),
    "paged_kv": frozenset({"read", "write", "update"}),
    "prefix_snapshot": frozenset({"read", "write"}),
    "ring_snapshot": frozenset({"read", "write"}),
    "prompt_lookup_index": frozenset({"read", "update"}),
    "token_tree_mask": frozenset({"read", "write"}),
    "draft_tokens": frozenset({"read", "write"}),
}
"""State kind -> what a node may do to it."""

READS_INTEGERS = frozenset(
    {"copy", "blend", "expert_gate_up", "expert_down", "mla_attention", "compressed_attention"}
)
"""Ops that may read an i32 edge: ids of experts or of selected rows."""

LIFETIMES = frozenset({"model", "sequence", "step", "verify", "snapshot"})
KEYED_FORMATS = frozenset({"{kv_cache_dtype}", "{ssm_h_storage}"})
"""Formats of a state that a serve flag states."""
VERIFY_KINDS = frozenset({"h_steps", "conv_steps"})


@dataclass(frozen=True, slots=True)
class Mode:
    """What a plan is made for: its section, and how many sequences its rows belong to."""

    section: str
    sequences: str
    """`n`: each row ends its own sequence or is wanted on its own; `1`: all rows are one prompt"""


MODES: dict[str, Mode] = {
    "decode": Mode("main", "n"),
    "multi_seq": Mode("main", "n"),
    "verify": Mode("main", "n"),
    "verify_batch": Mode("main", "n"),
    "draft": Mode("draft", "n"),
    "prefill": Mode("main", "1"),
    "prefill_chunk": Mode("main", "1"),
    "prefix_restore": Mode("main", "1"),
}
