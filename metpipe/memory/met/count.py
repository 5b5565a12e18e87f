"""The `met` accounting at one point: terms, and the rows behind them (sections 17 and 18)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from metpipe.memory.devices import DeviceRefusal
from metpipe.memory.met.arena_range import arena_range
from metpipe.memory.met.evidence import evidence, other_booted
from metpipe.memory.met.held import counts_at, main_pool, side_of, states_of
from metpipe.memory.met.legacy_arena import ArenaSizes, arena_bytes, two_phase_bytes
from metpipe.memory.met.side import MetModel, MetSide
from metpipe.memory.met.unread import DRAFTER_NOTE
from metpipe.memory.met.versions import Version
from metpipe.memory.point import Point
from metpipe.memory.report import Counts, RunBytes, StateBytes, Term
from metpipe.memory.workspaces import Program, workspaces_of

__all__ = ["arena_sizes", "count", "terms"]

SOURCES: Mapping[str, str] = {
    "weights": "bound matrices and the embedding in the formats that the checkpoint declares",
    "outside": "tensors of the checkpoint that no node binds",
    "copies": "what the loader makes from weights: the rules of {copies}",
    "arena": "the default forward's buffers for a step of max_batch_tokens rows",
    "two_phase": "prefill of the delta nets in two phases",
    "workspace": "scratch of kernel families that the arena does not hold",
    "kv": "blocks of the target's and of the draft head's cache",
    "states": "recurrent states: a slot per sequence and a dummy, and what a verify may go back to",
    "snapshots": "recurrent states kept for the prefix cache and for the decode ring",
    "carry": "rows and tables of a verify that carries its state",
    "speculation": "tables and hidden rows of a verify; what-ifs: captured rows, a token tree",
}
"""Term -> what it is."""

SPECULATION = (
    "verify_table",
    "accept_stash",
    "hidden_capture",
    "token_tree_mask",
    "draft_tokens",
)
TERM_OF_CACHE: Mapping[str, str] = {
    "prefix_snapshot": "snapshots",
    "ring_snapshot": "snapshots",
    "carry_stash": "carry",
    "carry_table": "carry",
    **dict.fromkeys(SPECULATION, "speculation"),
    "prompt_lookup_index": "host",
}


def terms(point: Point) -> tuple[Term, ...]:
    """The device's terms but the driver's; plans nothing.

    Raises:
        ConfigError: as `count`.
    """
    return _terms(point, states_of(point))


def count(point: Point) -> Counts:
    """The same terms with everything behind them.

    Planned activations are informative: the arena is charged.

    Raises:
        ConfigError: a device without SMs, a dtype without a size, a state that no verify can undo.
    """
    side, states = side_of(point), states_of(point)
    programs = programs_of(point)
    return Counts(
        terms=_terms(point, states),
        nodes=side.weights.nodes,
        states=states,
        runs=tuple(_run(point, program) for program in programs),
        workspaces=workspaces_of(point, programs),
        kv_blocks=main_pool(point).blocks if _has_cache(point) else 0,
        pool_bytes=sum(s.bytes for s in states if s.holding == "blocks" and s.section == "main"),
        notes=tuple(_notes(side)),
        host=sum(state.bytes for state in states if state.holding == "host"),
    )


def programs_of(point: Point) -> tuple[Program, ...]:
    """The steps that are planned: decode, a verify of all sequences, the widest prefill."""
    counts, load = counts_at(point), point.workload
    rows = max(1, min(counts.max_batch_tokens - counts.slots, load.isl))
    decode = "decode" if load.concurrency == 1 else "multi_seq"
    programs = [("decode", decode, load.concurrency)]
    if counts.speculates:
        programs.append(("verify", "multi_seq", load.concurrency * counts.verify_width))
    return (*programs, ("prefill", "prefill", rows))


def arena_sizes(point: Point) -> ArenaSizes:
    """What the arena's buffers are sized by.

    Raises:
        DeviceRefusal: the device is no GPU, or one of a class that met's engine isn't made for.
    """
    device, serve = point.device, point.serve
    if device.sm_count is None:
        raise DeviceRefusal(
            f"hardware={device.id}: met's engine runs on GPUs, and the met accounting needs "
            "the SMs of one; choose hardware=ID of a GPU, such as gb10",
            "met's engine runs on GPUs of which the SMs are known",
        )
    if device.split_k is None:
        raise DeviceRefusal(
            f"hardware={device.id}: met's engine has no kernels for the class "
            f"{device.device_class}, so nothing says how it would size its decode; choose "
            "hardware=ID of gb10, Hopper, B200 or B300",
            "met's engine has no kernels for their class",
        )
    return ArenaSizes(
        tokens=counts_at(point).max_batch_tokens,
        slots=point.num_slots,
        max_seq_len=serve.max_seq_len,
        block_size=serve.block_size,
        sm_count=device.sm_count,
        split_k=device.split_k,
        expert_element_bytes=side_of(point).model.version.expert_element_bytes,
    )


def _terms(point: Point, states: tuple[StateBytes, ...]) -> tuple[Term, ...]:
    side, sizes = side_of(point), arena_sizes(point)
    model = side.model
    held = dict.fromkeys(SOURCES, 0) | {"host": 0}
    held["weights"] = side.weights.stored
    held["outside"] = side.outside.bytes or 0
    held["two_phase"] = two_phase_bytes(model.shape, sizes.tokens, sizes.max_seq_len)
    held["workspace"] = _workspace(point)
    for state in states:
        held[_term_of(state)] += state.bytes
    spans = {term: (size, size) for term, size in held.items()}
    spans["arena"] = _arena(model, sizes, judged=side.pools is not None)
    spans["copies"] = (side.weights.derived, side.weights.derived_most)
    return tuple(_term(point, key, spans[key]) for key in SOURCES)


@lru_cache(maxsize=4096)
def _arena(model: MetModel, sizes: ArenaSizes, *, judged: bool) -> tuple[int, int]:
    """One number where every part has a formula that boots speak for, else a range.

    What another version was booted with is the other end of it; a boot that is itself `judged` is
    held to its own version's formula alone.
    """
    if model.gaps is not None:
        return arena_range(model.shape, model.gaps, sizes)
    size = arena_bytes(model.shape, sizes)
    booted = None if judged else _other_arena(model)
    if booted is None:
        return size, size
    elements = booted.expert_element_bytes
    other = arena_bytes(model.shape, replace(sizes, expert_element_bytes=elements))
    return min(size, other), max(size, other)


def _other_arena(model: MetModel) -> Version | None:
    experts = bool(model.shape.experts)
    return other_booted("arena", model.arch, model.version, experts=experts)


def _notes(side: MetSide) -> Iterator[str]:
    """What is known of a serve in part only, and what is not counted."""
    model = side.model
    if side.flags.dflash:
        yield DRAFTER_NOTE
    if side.outside.bytes is None:
        yield f"outside bytes {side.outside.said}"
    if (booted := _other_arena(model)) is not None:
        yield (
            f"met's boots of {model.arch} ran version {booted.number}, and version "
            f"{model.version.number} has the arena another way: it is a range that holds both"
        )
    if model.gaps is not None:
        yield (
            f"no formula of met's arena speaks of {', '.join(model.gaps.what)}: it is a range, "
            "from the buffers that have one to four bytes an element for every result of every "
            "kind of layer"
        )
    if not any(model.arch in rule.arch for rule in model.rules):
        yield (
            f"no rule of {model.version.copies} speaks of {model.arch}: its copies are a range, "
            "from none to the most that the rules of another family make of such weights"
        )


def _term_of(state: StateBytes) -> str:
    if state.holding in ("cache", "host"):
        return TERM_OF_CACHE[state.kind]
    return "kv" if state.holding == "blocks" else "states"


def _term(point: Point, term: str, span: tuple[int, int]) -> Term:
    """A term with its status; one that nobody counted says so, and is charged as nothing."""
    side = side_of(point)
    if term == "outside" and side.outside.bytes is None:
        return Term(term, *span, "uncalibrated", side.outside.said)
    if term == "workspace" and any(span):
        held = "of the kernel set that plans it; no line of a boot's ledger holds it"
        return Term(term, *span, "uncalibrated", f"{SOURCES[term]}\n{held}")
    model = side.model
    status, held = evidence(
        term,
        model.arch,
        model.version,
        point.device.device_class,
        experts=bool(model.shape.experts),
    )
    return Term(term, *span, status, _source(term, model.version.copies, held))


@lru_cache(maxsize=256)
def _source(term: str, copies: str, held: str) -> str:
    """What a term is, and what it was held against."""
    return f"{SOURCES[term].format(copies=copies)}\n{held}"


def _workspace(point: Point) -> int:
    """What no arena holds; a set without such buffers is not planned for it."""
    families = point.planned.kernel_set.families
    if all(space.in_arena for family in families for space in family.workspaces):
        return 0
    spaces = workspaces_of(point, programs_of(point))
    return sum(space.bytes for space in spaces if not space.in_arena)


def _run(point: Point, program: Program) -> RunBytes:
    label, mode, rows = program
    sizes = point.planned.sizes(mode, rows)
    return RunBytes(label, mode, rows, *sizes.arena(rows), uncovered=sizes.uncovered)


def _has_cache(point: Point) -> bool:
    return any(
        group.kind == "paged_kv" and group.section == "main" for group in point.planned.states
    )
