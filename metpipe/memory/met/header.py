"""What a report says above its numbers: formats, counts, and what was decided (section 22.1)."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.memory.met.count import arena_sizes
from metpipe.memory.met.held import counts_at, formats_of, side_of
from metpipe.memory.met.legacy_arena import two_phase_bytes
from metpipe.memory.met.side import Decision
from metpipe.memory.point import Point

__all__ = ["header"]

MIB = 1 << 20


def header(point: Point) -> Mapping[str, str]:
    """Lines by key, in order."""
    side = side_of(point)
    return {
        "engine": f"met, version {side.model.version.number}: {side.model.version.what}",
        "defaults": side.model.behaviour or "the engine's own: no target speaks of this model",
        "formats": _formats(point),
        "slots": _slots(point),
        "caches": _caches(point),
        "expert tables": _decision(side.decision),
        "arena": _arena(point),
        "outside": _outside(point),
    }


def _formats(point: Point) -> str:
    side, formats = side_of(point), formats_of(point)
    draft = f", draft KV {formats.draft_kv_cache_dtype}" if side.model.drafts else ""
    return (
        f"tier {side.flags.weight_quantization}, head {side.head}, KV {formats.kv_cache_dtype}"
        f"{draft}, recurrent state {formats.ssm_h_storage}"
    )


def _slots(point: Point) -> str:
    counts = counts_at(point)
    pool = f"{counts.slots} and a dummy"
    if not counts.speculates:
        return f"{pool}; no speculation"
    return (
        f"{pool}; verifies of {counts.verify_width} rows, {counts.verify.count - 1} verify slots "
        f"and a dummy, at most {counts.mtp_max_seqs} sequences at once"
    )


def _caches(point: Point) -> str:
    counts, side = counts_at(point), side_of(point)
    what_ifs = side.what_ifs
    ring = f"decode ring {counts.ring_depth} x {counts.slots}"
    if counts.ring_depth:
        ring += " (a boot may fit it down)"
    if side.flags.ssm_decode_ring_slots is not None:
        ring += ", whatever serve.ssm_decode_ring_slots says"
    return (
        f"prefix slots {counts.prefix_slots}, {ring}, carry slots {counts.carry_slots}, verify "
        f"rows {counts.verify_rows}, captured rows {what_ifs.capture_rows}, prompt lookup "
        f"{'on' if what_ifs.prompt_lookup else 'off'}, tree nodes {what_ifs.tree_nodes or 'none'}"
    )


def _decision(decision: Decision | None) -> str:
    if decision is None:
        return "none"
    room = f"headroom {_mib(decision.headroom_with)} with them"
    if decision.headroom_without is not None:
        room += f", {_mib(decision.headroom_without)} without"
    return (
        f"{'build' if decision.builds else 'skip'}: {_mib(decision.tables)}, {room}, at "
        f"{decision.concurrency} x ({decision.isl} + {decision.osl}) tokens"
    )


def _arena(point: Point) -> str:
    shape, sizes = side_of(point).model.shape, arena_sizes(point)
    line = f"a step of {sizes.tokens} rows"
    two_phase = two_phase_bytes(shape, sizes.tokens, sizes.max_seq_len)
    return f"{line}; two-phase prefill {_mib(two_phase)}" if two_phase else line


def _outside(point: Point) -> str:
    outside = side_of(point).outside
    return outside.said if outside.bytes is None else f"{_mib(outside.bytes)} ({outside.said})"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
