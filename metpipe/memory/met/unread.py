"""Flags and what-ifs that would size nothing of a model: refused, or noted, by name."""

from __future__ import annotations

from metpipe.errors import ConfigError
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.side import MetModel, WhatIfs

__all__ = ["DRAFTER_NOTE", "refuse_unread"]

DRAFTER_NOTE = (
    "serve.dflash=true: the block drafter is a model of its own, and nothing says its sizes: its "
    "weights and its cache are not counted"
)
TABLE = "expert_quantization"
"""The setting of a copy rule that the flag of this name decides."""


def refuse_unread(model: MetModel, flags: MetFlags, what_ifs: WhatIfs) -> None:
    """What asks for a part that the model, or the rules of its copies, do not have.

    Raises:
        ConfigError: drafts or captured rows without a draft head; a block drafter of a model of
            which a verify keeps nothing; a format of experts that no rule reads.
    """
    if flags.speculative and not model.drafts:
        raise ConfigError("serve.speculative=true: the model has no draft head; leave it false")
    if flags.dflash and not (model.drafts or model.shape.recurrent):
        raise ConfigError(
            "serve.dflash=true: the drafter's own sizes are not known, and a verify keeps nothing "
            "of this model, which has neither recurrent states nor a draft head; leave it false"
        )
    captures = any(cache.kind == "hidden_capture" for cache in model.caches)
    if what_ifs.capture_rows and not captures:
        raise ConfigError(
            f"capture_rows={what_ifs.capture_rows}: keeps hidden rows for a draft head, and the "
            "model has none; leave it out"
        )
    reads = any(TABLE in rule.when and model.arch in rule.arch for rule in model.rules)
    if flags.expert_quantization != "declared" and not reads:
        raise ConfigError(
            f"serve.expert_quantization={flags.expert_quantization}: no rule of "
            f"{model.version.copies} reads it for {model.arch}, so it would size nothing; set "
            "serve.expert_quantization=declared"
        )
