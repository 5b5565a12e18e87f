"""Derived copies: device allocations that a loader makes from a weight (section 8).

Which weights have which copies is data, COPIES.toml; this is how a rule matches and what it costs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit import parse_format, weight_bytes
from metpipe.errors import ConfigError

__all__ = ["SETTINGS", "CopyRule", "Weight", "check_law", "copies_of", "law_bytes"]

TIERS = ("declared", "bf16", "fp8", "nvfp4")
SWITCH = ("on", "off")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "speculative": SWITCH,
    "weight_quantization": TIERS,
    "lm_head_dtype": ("bf16", "f32", "fp8", "nvfp4", "mxfp4"),
    "expert_quantization": TIERS,
    "latent_moe": SWITCH,
    "moe_expert_tables": ("build", "skip"),
}
"""What a rule's `when` may test -> the values that it may have (section 4.4)."""

ROW_SCALE = "row_scale_f32"
BLOCK_GRID = re.compile(r"block_grid_f32/([1-9][0-9]*)x([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight as a rule sees it: `op` is `linear:q` or `lm_head`, `number` its experts or 1."""

    arch: str
    section: str
    op: str
    stored: str
    served: str
    out: int
    k: int
    number: int


@dataclass(frozen=True, slots=True)
class CopyRule:
    """`count` copies by `law` of every weight that matches; empty `stored`, `served`: any.

    A leaked copy is one that nothing reads and nothing frees. `site` is what the loader does.
    """

    id: str
    arch: tuple[str, ...]
    ops: tuple[str, ...]
    section: str
    stored: tuple[str, ...]
    served: tuple[str, ...]
    when: Mapping[str, str]
    law: str
    count: int
    leaked: bool
    site: str

    def matches(self, weight: Weight, settings: Mapping[str, str]) -> bool:
        """Whether the loader makes this copy of the weight; every setting must be stated."""
        return (
            weight.arch in self.arch
            and weight.section == self.section
            and weight.op in self.ops
            and (not self.stored or weight.stored in self.stored)
            and (not self.served or weight.served in self.served)
            and all(settings[name] == value for name, value in self.when.items())
        )

    def bytes(self, weight: Weight) -> int:
        """What its copies of the weight take, all experts together."""
        return law_bytes(self.law, weight.out, weight.k) * weight.number * self.count


def copies_of(
    weight: Weight, rules: tuple[CopyRule, ...], settings: Mapping[str, str]
) -> tuple[tuple[CopyRule, int], ...]:
    """Every rule that matches, with its bytes; all of them add."""
    return tuple((rule, rule.bytes(weight)) for rule in rules if rule.matches(weight, settings))


def law_bytes(law: str, out: int, k: int) -> int:
    """Bytes of one copy of an `out` x `k` weight (section 8.1).

    A format's spelling is the whole weight in it; the others are f32 scales beside the weight.
    """
    if law == ROW_SCALE:
        return 4 * out
    if grid := BLOCK_GRID.fullmatch(law):
        return 4 * -(-out // int(grid[1])) * -(-k // int(grid[2]))
    return weight_bytes(law, out, k)


def check_law(law: str, where: str) -> None:
    """Refuse what is no law.

    Raises:
        ConfigError: it is neither a format nor one of the scales.
    """
    if law == ROW_SCALE or BLOCK_GRID.fullmatch(law):
        return
    try:
        parse_format(law)
    except ConfigError as problem:
        raise ConfigError(
            f"{where}: {law!r} is no law; it is {ROW_SCALE}, block_grid_f32/<r>x<c>, or a format "
            f"({problem})"
        ) from None
