"""The terms of a serve as formulas on integers: no file, no environment, no default.

Units are bytes unless a name says otherwise. Each term of the ledger has one function here, so an
engine can be held to it byte for byte. Division rounds as each docstring says; the only float is
the utilisation of `budget_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from metpipe.circuit import formats
from metpipe.errors import ConfigError

__all__ = [
    "block_table_width",
    "budget_bytes",
    "driver_bytes",
    "element_bytes",
    "hidden_row_bytes",
    "kv_blocks",
    "kv_bytes",
    "prefill_rows",
    "recurrent_bytes",
    "rope_table_bytes",
    "spill_record_bytes",
    "step_input_bytes",
    "weight_bytes",
]

WEIGHT_ELEMENT_BYTES = 2
TABLE_ELEMENT_BYTES = 4
STEP_ELEMENT_BYTES = 4
SPILL_HEADER_BYTES = 16


def element_bytes(dtype: str, name: str) -> int:
    """Bytes of one element of `dtype`; `name` is what has the dtype, for the message.

    Raises:
        ConfigError: the dtype has no whole element size (nvfp4, a misspelling).
    """
    try:
        return formats.element_bytes(dtype)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None


def weight_bytes(shapes: Iterable[tuple[int, ...]]) -> int:
    """Tensors of these shapes kept in bf16: two bytes an element, without padding between them."""
    return sum(math.prod(shape) for shape in shapes) * WEIGHT_ELEMENT_BYTES


def kv_blocks(num_sequences: int, num_tokens: int, block_size: int) -> int:
    """Paged blocks for sequences of `num_tokens` each: every one also has room for its next token.

    floor(tokens / block) + 1 blocks a sequence, and one dummy block that padding rows write to.

    Raises:
        ConfigError: the block size is not positive.
    """
    if block_size <= 0:
        raise ConfigError(f"serve.block_size: a block holds at least 1 token, got {block_size}")
    return num_sequences * (num_tokens // block_size + 1) + 1


def kv_bytes(num_blocks: int, block_size: int, elements: int, dtype_bytes: int) -> int:
    """One pool (the keys or the values of one layer); `elements` is per token."""
    return num_blocks * block_size * elements * dtype_bytes


def recurrent_bytes(num_slots: int, elements: int, dtype_bytes: int) -> int:
    """One recurrent state: a slot per sequence and one dummy slot; `elements` is per slot."""
    return (num_slots + 1) * elements * dtype_bytes


def prefill_rows(isl: int, max_prefill_tokens: int) -> int:
    """Rows of the widest prefill: a prompt, or a chunk of it."""
    return min(max_prefill_tokens, isl)


def rope_table_bytes(max_positions: int, rotary_dim: int) -> int:
    """Cosine and sine of one set of rope parameters: f32 [max_positions, rotary_dim / 2] each."""
    return 2 * max_positions * (rotary_dim // 2) * TABLE_ELEMENT_BYTES


def block_table_width(max_seq_len: int, block_size: int) -> int:
    """Entries of a sequence's row in the block table: ceil(max_seq_len / block) + 1."""
    return -(-max_seq_len // block_size) + 1


def step_input_bytes(num_rows: int, max_seq_len: int, block_size: int) -> int:
    """What a step reads besides edges, for its widest run, in i32.

    A row has a token id, a position, a slot, a snapshot row, and a row of the block table.
    """
    return num_rows * (4 + block_table_width(max_seq_len, block_size)) * STEP_ELEMENT_BYTES


def hidden_row_bytes(num_sequences: int, hidden: int) -> int:
    """What drafts start from: the target's last row of each drafting sequence, in bf16."""
    return num_sequences * hidden * WEIGHT_ELEMENT_BYTES


def spill_record_bytes(num_tokens: int, token_bytes: int, slot_bytes: int) -> int:
    """A sequence as one record: two u64 lengths, its tokens' keys and values, its states.

    `token_bytes` are those of a token over all layers and sides, `slot_bytes` those of a slot over
    all recurrent states.
    """
    return SPILL_HEADER_BYTES + num_tokens * token_bytes + slot_bytes


def budget_bytes(device_bytes: int, utilization: float) -> int:
    """floor(device bytes x utilisation): what the serve may occupy."""
    return math.floor(device_bytes * utilization)


def driver_bytes(budget: int, fixed_bytes: int, budget_per_mille: int, chunk_slack: int = 0) -> int:
    """What the driver takes for itself: a fixed part and a share of the budget.

    fixed + floor(budget / 1000) x per mille: context, modules and graphs, then page bookkeeping.
    `chunk_slack` is what small allocations leave unused of the driver's chunks; only a ledger
    knows it.
    """
    return fixed_bytes + budget // 1000 * budget_per_mille + chunk_slack
