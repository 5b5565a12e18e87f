"""The serve flags: what an engine would be started with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict

from metpipe.config.fields import Count, Frozen, Natural, Number

__all__ = ["Serve"]

DEEPEST = 7
"""Drafts of a verify of 8 rows, the deepest that the diff runs."""
MOST_AT_ONCE = 128
"""Sequences of the widest verify: an engine's tables have as many rows."""
Tier = Literal["declared", "bf16", "fp8", "nvfp4"]


def not_auto(value: object) -> object:
    """Another key has that word."""
    if value == "auto":
        raise ValueError("must be a whole number; slots=auto has as many as there are sequences")
    return value


class Serve(Frozen):
    """The serve flags, by their names on a command line with underscores; null: not given."""

    max_seq_len: Count = Field(description="longest sequence, prompt and output together")
    max_batch_size: Annotated[Count, BeforeValidator(not_auto)] = Field(
        description="sequences that decode at once"
    )
    gpu_memory_utilization: Annotated[float, Strict()] = Field(
        gt=0, le=1, description="share of the device's memory that the engine may use"
    )
    kv_cache_dtype: Literal["bf16", "f16", "f32", "fp8"] | None = Field(
        description="dtype of the paged keys and values; null: the counted engine's own"
    )
    lm_head_dtype: Literal["default", "bf16", "fp8", "nvfp4"] = Field(
        description="format of the output head"
    )
    weight_quantization: Tier = Field(description="format of the linear layers")
    expert_quantization: Tier = Field(description="format of the routed experts")
    mtp_quantization: Tier = Field(description="format of the draft head")
    speculative: bool = Field(description="decode with drafts of the model's own head")
    dflash: bool = Field(description="decode with drafts of a separate block drafter")
    dflash_gamma: Count | None = Field(description="drafts per step of that drafter")
    num_drafts: Annotated[Count, Field(le=DEEPEST)] | None = Field(
        description="drafts per step, 1 to 7; null: what the model says"
    )
    mtp_max_seqs: Annotated[Count, Field(le=MOST_AT_ONCE)] | None = Field(
        description="sequences that may speculate at once, 1 to 128"
    )
    ssm_h_dtype: Literal["f32", "f16-pool"] = Field(description="dtype of the recurrent state")
    ssm_rollback_mode: Literal["snapshot", "replay"] = Field(
        description="how rejected drafts leave the recurrent state"
    )
    ssm_cache_slots: Natural = Field(description="slots of the recurrent prefix cache")
    ssm_decode_ring_slots: Annotated[Number, Field(ge=0, le=8)] | None = Field(
        description="depth of the recurrent decode ring"
    )
    enable_prefix_caching: bool = Field(description="share blocks of equal prompt beginnings")
    block_size: Count = Field(description="tokens of one block of keys and values")
    max_prefill_tokens: Count = Field(description="tokens of one prefill pass")
    high_speed_swap: bool = Field(description="move cold sequences to fast storage")
    graphs: bool | None = Field(
        description="captured launches in the plan; null: where the planned device can"
    )
    tensor_parallel_size: Count = Field(description="ranks that share each layer")
    pipeline_parallel_size: Count = Field(description="ranks that share the layers")
    expert_parallel_size: Count = Field(description="ranks that share the experts")
    rank: Natural = Field(description="this process's rank; the diff runs on the head, rank 0")
