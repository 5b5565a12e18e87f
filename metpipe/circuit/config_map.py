"""A config map: how the keys of a Hugging Face config.json become dims and params.

Every key of a config is classified here; `resolve` refuses the others by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = [
    "ABSENT",
    "ConfigMap",
    "DimRule",
    "GroupKind",
    "Inside",
    "IntervalRule",
    "KeyRule",
    "LayerRule",
    "LayerSource",
    "Leading",
    "OfKind",
    "ParamGroup",
    "SizeCheck",
    "Variant",
]

ABSENT = object()
"""The map states no default."""


@dataclass(frozen=True, slots=True)
class DimRule:
    """Where a dim comes from. null: or_dim, or_div; absent: default, or as null without one."""

    name: str
    key: str | None
    is_switch: bool = False
    """the key holds true or false"""
    is_presence: bool = False
    """1 where the key is there and not null, else 0"""
    allowed: tuple[int, ...] = ()
    """the only sizes that are served; empty: any"""
    const: int | None = None
    default: int | None = None
    or_dim: str | None = None
    or_div: tuple[str, str] | None = None
    share: tuple[str, str] | None = None
    """a dim and a param: the part of the dim that the param says, rounded down"""
    may_be_zero: bool = False
    """0 is a size: none of these"""
    of_kind: OfKind | None = None
    """read there where that key is stated"""
    leading: Leading | None = None
    """counted there where that key is stated"""
    inside: Inside | None = None
    """read there where that key is stated"""


@dataclass(frozen=True, slots=True)
class Inside:
    """A member of an object, whose other members `keys` classifies."""

    key: str
    member: str


@dataclass(frozen=True, slots=True)
class Leading:
    """A list whose first entries are `entry` and whose others are `rest`."""

    key: str
    entry: str
    rest: str


@dataclass(frozen=True, slots=True)
class OfKind:
    """An object of layer numbers: every layer of `kind`, and no other, states `member` alike."""

    key: str
    kind: str
    member: str


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What is done with a key: ignore, param, require, each, refuse, object or inner."""

    kind: str
    why: str = ""
    param: str = ""
    """param: its name; `group.member` joins a group"""
    required: tuple[object, ...] = ()
    default: object = ABSENT
    """the value of the Hugging Face class when the key is absent"""
    values: Mapping[str, object] = field(default_factory=dict)
    """param: renames of values"""
    holds: str = ""
    """param: `positive` (a number above 0) or `bool`; empty: any value"""
    is_not_null: bool = False
    """param: null is refused, since it means something else than the default"""
    inner: Mapping[str, KeyRule] = field(default_factory=dict)
    """object: its keys"""
    inner_key: str = ""
    """inner (beside the nest only): the key of the nest that this value replaces"""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """The members that one kind of a group must and may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    fallback: Mapping[str, str]
    """member -> the top-level config key that stands in for it"""


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """Members gathered into one JSON object; the member `selector` says which kind it is."""

    name: str
    selector: str
    always: tuple[str, ...]
    defaults: Mapping[str, object]
    kinds: Mapping[str, GroupKind]
    why: str


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A key that names the kind of each layer: a list, or a string of letters."""

    key: str
    values: Mapping[str, str]
    """entry (a name, a letter, a number as text) -> layer kind"""
    why: str
    """why other entries are refused"""
    trailing: str | None
    """the key that counts entries at the end which are no layers (draft heads)"""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """The last of every `key` layers is of one kind, the others of another."""

    key: str | None
    """None: no key says it, every `default` layers"""
    default: int
    last: str
    others: str

    def kinds(self, period: int, count: int) -> tuple[str, ...]:
        """The kind of each layer."""
        return tuple(self.others if (i + 1) % period else self.last for i in range(count))


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How many layers, and of which kinds: at most one source may be there."""

    count: str
    uniform: str | None
    """the kind of every layer where no source is there; None: the interval says, or one must be"""
    sources: tuple[LayerSource, ...]
    interval: IntervalRule | None = None
    last: str | None = None
    """the kind that the last layer must have"""
    count_from_list: bool = False
    """where the count is not stated, a source's length is it"""


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A dim must be a multiple of another dim or of a number, or no more than another dim."""

    dim: str
    multiple_of: str | int | None
    why: str
    at_most: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """What one model type of the family has otherwise."""

    dims: Mapping[str, DimRule]
    keys: Mapping[str, KeyRule]
    is_flat: bool = False
    """its keys lie in the root, not in the nest"""


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """One architecture's map; `for_model_type` applies a variant's replacements."""

    source: str
    arch: str
    model_types: tuple[str, ...]
    nest: str | None
    """the key of the object that holds the keys; `root` classifies the keys beside it"""
    root: Mapping[str, KeyRule]
    layers: LayerRule
    dims: Mapping[str, DimRule]
    keys: Mapping[str, KeyRule]
    groups: Mapping[str, ParamGroup]
    checks: tuple[SizeCheck, ...]
    variants: Mapping[str, Variant]

    def for_model_type(self, model_type: str) -> ConfigMap:
        """This map with the replacements of the model type's variant, if it has one."""
        variant = self.variants.get(model_type, Variant({}, {}))
        return replace(
            self,
            dims={**self.dims, **variant.dims},
            keys={**self.keys, **variant.keys},
            nest=None if variant.is_flat else self.nest,
        )
