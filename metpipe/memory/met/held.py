"""What a serve holds beside weights and buffers at one point: states and caches, row by row."""

from __future__ import annotations

from metpipe.memory.met.caches import CacheUnits, cache_rows
from metpipe.memory.met.demand import DRAFT_BLOCK, draft_blocks, main_blocks
from metpipe.memory.met.engine_counts import EngineCounts, engine_counts
from metpipe.memory.met.side import MetSide
from metpipe.memory.met.states import Pool, StateFormats, state_rows
from metpipe.memory.point import Point
from metpipe.memory.report import StateBytes

__all__ = ["counts_at", "formats_of", "main_pool", "side_of", "states_of"]


def side_of(point: Point) -> MetSide:
    """The point's prepared side."""
    assert point.met is not None, "a point of the met accounting is prepared"
    return point.met


def counts_at(point: Point) -> EngineCounts:
    """The engine's counts at the point's slots."""
    side = side_of(point)
    return engine_counts(
        point.serve,
        side.flags,
        side.model.shape,
        side.model.caps,
        point.num_slots,
        side.what_ifs.tree_nodes,
    )


def states_of(point: Point) -> tuple[StateBytes, ...]:
    """A row per state and holding, then one per cache.

    Raises:
        ConfigError: a dtype without an element size, a state that no verify can undo.
    """
    side, counts = side_of(point), counts_at(point)
    main = main_pool(point)
    rows = state_rows(
        point.planned.states, formats_of(point), counts, main, _draft_pool(point, main.blocks)
    )
    return (*rows, *cache_rows(side.model.caches, _units(point, counts)))


def formats_of(point: Point) -> StateFormats:
    """Dtypes of the states. The draft's cache is FP8 only beside an NVFP4 draft of this family."""
    side, serve = side_of(point), point.serve
    narrow = side.flags.mtp_quantization == "nvfp4" and side.model.arch == "qwen3_6_moe"
    return StateFormats(
        kv_cache_dtype=serve.kv_cache_dtype,
        draft_kv_cache_dtype="fp8" if narrow else "bf16",
        ssm_h_storage="f16" if serve.ssm_h_dtype == "f16-pool" else serve.ssm_h_dtype,
    )


def main_pool(point: Point) -> Pool:
    """The target's pool: a boot's own, else what the load asks for."""
    side, block = side_of(point), point.serve.block_size
    if side.pools is not None:
        return Pool(side.pools.kv_blocks, block)
    nodes = side.what_ifs.tree_nodes or 0
    return Pool(main_blocks(point.workload.concurrency, point.num_tokens, nodes, block), block)


def _draft_pool(point: Point, blocks: int) -> Pool | None:
    side, counts = side_of(point), counts_at(point)
    if not (counts.speculates and side.model.drafts):
        return None
    if side.pools is not None:
        return Pool(side.pools.draft_kv_blocks, DRAFT_BLOCK)
    return Pool(draft_blocks(point.num_tokens, blocks, counts.mtp_max_seqs), DRAFT_BLOCK)


def _units(point: Point, counts: EngineCounts) -> CacheUnits:
    what_ifs = side_of(point).what_ifs
    return CacheUnits(
        prefix_slots=counts.prefix_slots,
        ring_depth=counts.ring_depth,
        slots=counts.slots,
        carry_slots=counts.carry_slots,
        carry_rows=counts.carry_rows,
        verify_rows=counts.verify_rows,
        capture_rows=what_ifs.capture_rows,
        sequences=point.workload.concurrency,
        history=point.num_tokens if what_ifs.prompt_lookup else None,
        tree_nodes=what_ifs.tree_nodes,
    )
