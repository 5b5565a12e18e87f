"""A point whose serve is started with another flag: what its engine decides at boot is redone."""

from __future__ import annotations

from dataclasses import replace

from metpipe.memory.met.decision import SETTING, decided
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.prepare import prepare, with_setting
from metpipe.memory.met.side import MetSide
from metpipe.memory.point import Point

__all__ = [
    "rebooted",
    "with_kv_dtype",
    "with_snapshot_slots",
    "with_verify_width",
    "without_block_drafter",
    "without_drafts",
    "without_snapshots",
    "without_verify",
]


def rebooted(point: Point) -> Point:
    """The point with its boot's decisions redone; met's engine decides on its expert tables.

    Raises:
        ConfigError: as an evaluation at the serve's ceiling.
    """
    if point.met is None or point.met.decision is None:
        return point
    return decided(
        replace(point, met=replace(with_setting(point.met, **{SETTING: "build"}), decision=None))
    )


def with_kv_dtype(point: Point, dtype: str) -> Point:
    """The point with keys and values in another dtype."""
    return rebooted(replace(point, serve=replace(point.serve, kv_cache_dtype=dtype)))


def with_snapshot_slots(point: Point, slots: int) -> Point:
    """The point with so many snapshots of recurrent state kept by a prefix cache."""
    side = _side(point)
    flags = replace(side.flags, ssm_cache_slots=slots, enable_prefix_caching=True)
    return rebooted(replace(point, met=replace(side, flags=flags)))


def without_snapshots(point: Point) -> str:
    """Why a plan of the point cannot keep snapshots; empty where it can."""
    if point.met is None:
        return "this engine keeps no prefix cache"
    if not point.met.model.shape.recurrent:
        return "the model keeps no recurrent state"
    return ""


def with_verify_width(point: Point, width: int) -> Point:
    """The point with verifies of `width` rows a sequence: its drafts and one."""
    serve = replace(point.serve, speculative=True, num_drafts=width - 1)
    point = replace(point, serve=serve)
    if point.met is None:
        return point
    flags = replace(point.met.flags, speculative=True, num_drafts=width - 1)
    return _with_flags(point, point.met, flags)


def without_drafts(point: Point) -> Point:
    """The point without drafts of the model's own head; a block drafter stays."""
    stays = point.met is not None and point.met.flags.dflash
    drafts = point.serve.num_drafts if stays else None
    point = replace(point, serve=replace(point.serve, speculative=False, num_drafts=drafts))
    if point.met is None:
        return point
    flags = replace(point.met.flags, speculative=False)
    return _with_proposers(point, point.met, flags)


def without_block_drafter(point: Point) -> Point:
    """The point without a separate block drafter; drafts of the model's own head stay."""
    side = _side(point)
    return _with_proposers(point, side, replace(side.flags, dflash=False, dflash_gamma=None))


def without_verify(point: Point) -> str:
    """Why no verify of the point can be asked about; empty where one can."""
    if point.met is not None and (nodes := point.met.what_ifs.tree_nodes) is not None:
        return f"tree_nodes={nodes} sizes the verify"
    if point.met is not None and point.met.flags.dflash:
        return "serve.dflash_gamma sizes the verify"
    has_head = point.has_draft_head if point.met is None else point.met.model.drafts
    return "" if has_head else "the model has no draft head"


def _with_proposers(point: Point, side: MetSide, flags: MetFlags) -> Point:
    """The point under flags of fewer proposers; without any, nothing that sizes them is left."""
    if flags.speculates:
        return _with_flags(point, side, flags)
    point = replace(point, serve=replace(point.serve, num_drafts=None))
    flags = replace(flags, num_drafts=None, mtp_max_seqs=None)
    side = replace(side, what_ifs=replace(side.what_ifs, tree_nodes=None))
    return _with_flags(point, side, flags)


def _with_flags(point: Point, side: MetSide, flags: MetFlags) -> Point:
    """The side prepared again where a flag decides formats or copies."""
    if flags.speculates == side.flags.speculates:
        return rebooted(replace(point, met=replace(side, flags=flags)))
    made = prepare(side.model, flags, side.outside, side.what_ifs)
    fresh = replace(made, pools=side.pools, chunk_slack=side.chunk_slack)
    return decided(replace(point, met=fresh))


def _side(point: Point) -> MetSide:
    assert point.met is not None, "only met's engine keeps snapshots"
    return point.met
