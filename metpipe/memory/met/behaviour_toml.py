"""Reads kernels/behaviour/*.toml, schema 1: met's defaults for a model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from metpipe.memory.met.behaviour import Behaviour
from metpipe.memory.toml_model import Schema1, Strict, parse_model

__all__ = ["parse_behaviour"]


class _Defaults(Strict):
    default_num_drafts: int = Field(ge=0)
    mtp_max_seqs: int = Field(ge=0, le=128)
    default_kv_dtype: Literal["", "bf16", "f16", "f32", "fp8"]


class _Checkpoint(Strict):
    id: str
    outside_bytes: int = Field(ge=0)


class _File(Strict):
    schema_version: Schema1 = Field(alias="schema")
    arch: str
    dims: dict[str, int] = Field(min_length=1)
    behavior: _Defaults
    checkpoint: list[_Checkpoint] = Field(default_factory=list)


def parse_behaviour(text: str, source: str) -> Behaviour:
    """The target in a TOML text; `source` names it in messages and in the report.

    Raises:
        ConfigError: broken TOML, an unknown or missing key, a value out of its range.
    """
    file = parse_model(_File, text, source)
    return Behaviour(
        arch=file.arch,
        dims=file.dims,
        num_drafts=file.behavior.default_num_drafts,
        mtp_max_seqs=file.behavior.mtp_max_seqs,
        kv_dtype=file.behavior.default_kv_dtype,
        outside={entry.id: entry.outside_bytes for entry in file.checkpoint},
        source=source,
    )
