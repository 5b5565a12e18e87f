"""Counts that met's engine takes from its serve flags (section 10): rules, no bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from metpipe.errors import ConfigError
from metpipe.memory.met.flags import MetFlags
from metpipe.memory.met.ladder import drafts_at
from metpipe.memory.met.shape import ModelShape
from metpipe.memory.serve import Serve

__all__ = ["EngineCounts", "VerifySlots", "dispatch_cap", "engine_counts", "verify_slots"]

DISPATCH_CAP = 32
CAP_LIMIT = 128
VERIFY_ROWS = 128
"""Rows of the verify's tables."""
RING_DEPTH = 8
DEFAULT_PREFILL = 8192
"""What max_prefill_tokens is when nobody set it; a serve that states it has set nothing."""
PREFILL_LIMIT = 65535
REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class VerifySlots:
    """Slots with intermediate states for a verify, the dummy last.

    `h_steps` are the kept h states per slot; of conv each slot keeps `conv_steps`.
    """

    h_steps: tuple[int, ...]
    conv_steps: int

    @property
    def count(self) -> int:
        """With the dummy."""
        return len(self.h_steps)

    @property
    def h_units(self) -> int:
        """Intermediate h states in all."""
        return sum(self.h_steps)

    @property
    def conv_units(self) -> int:
        """Intermediate windows of the convolution in all."""
        return self.conv_steps * len(self.h_steps)


NO_VERIFY = VerifySlots((), 0)


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine sizes its pools and buffers by; lengths in tokens."""

    slots: int
    num_drafts: int
    mtp_max_seqs: int
    verify: VerifySlots
    prefix_slots: int
    ring_depth: int
    carry_slots: int
    carry_rows: int
    verify_rows: int
    max_batch_tokens: int

    @property
    def speculates(self) -> bool:
        """Whether any slot is verified."""
        return self.verify.count > 0

    @property
    def verify_width(self) -> int:
        """K: rows of one verify."""
        return self.num_drafts + 1


@lru_cache(maxsize=4096)
def engine_counts(
    serve: Serve,
    flags: MetFlags,
    shape: ModelShape,
    caps: tuple[int, int],
    slots: int,
    tree_nodes: int | None,
) -> EngineCounts:
    """The counts at `slots`; `caps` are the target's own num_drafts and mtp_max_seqs (0: unset).

    Raises:
        ConfigError: a dispatch cap outside 1..128.
    """
    own_drafts, own_cap = caps
    drafts = _num_drafts(flags, own_drafts, tree_nodes)
    cap = dispatch_cap(flags.mtp_max_seqs, own_cap)
    uniform = flags.dflash or tree_nodes is not None
    replays = flags.ssm_rollback_mode == REPLAY
    verify = verify_slots(slots, drafts, cap, uniform, replays) if flags.speculates else NO_VERIFY
    carries = verify.count > 0 and serve.ssm_h_dtype == "f32" and shape.is_square
    return EngineCounts(
        slots=slots,
        num_drafts=drafts if flags.speculates else 0,
        mtp_max_seqs=cap,
        verify=verify,
        prefix_slots=flags.ssm_cache_slots if flags.enable_prefix_caching else 0,
        ring_depth=RING_DEPTH if shape.recurrent and not flags.speculates else 0,
        carry_slots=verify.count if carries else 0,
        carry_rows=VERIFY_ROWS if carries else 0,
        verify_rows=VERIFY_ROWS if flags.speculates else 0,
        max_batch_tokens=max(
            _prefill_budget(serve, shape) + slots, _spec_tokens(flags, drafts), slots
        ),
    )


def dispatch_cap(flag: int | None, own: int) -> int:
    """Sequences that may verify at once: the flag, the target's own, the engine's.

    Raises:
        ConfigError: outside 1..128.
    """
    cap = flag if flag is not None else own or DISPATCH_CAP
    if not 1 <= cap <= CAP_LIMIT:
        raise ConfigError(f"serve.mtp_max_seqs={cap}: must lie in 1..{CAP_LIMIT}")
    return cap


@lru_cache(maxsize=4096)
def verify_slots(slots: int, drafts: int, cap: int, uniform: bool, replays: bool) -> VerifySlots:
    """How many intermediate states each verify slot keeps.

    A slot is verified at the widths of all batches that reach it, so it keeps what the widest of
    them needs; `uniform`: all keep all; `replays`: none keeps any.
    """
    count = min(slots, max(cap, DISPATCH_CAP))
    if replays:
        return VerifySlots((0,) * (count + 1), 0)
    if uniform:
        return VerifySlots((drafts,) * (count + 1), drafts + 1)
    last = max(cap, count)
    at = [drafts_at(active, drafts) for active in range(1, last + 1)]
    reach = list(accumulate(reversed(at[:cap]), max))[::-1]
    widest = [reach[slot] if slot < cap else at[slot] for slot in range(count)]
    kept = tuple(min(max(1, drafts_of_slot), drafts) for drafts_of_slot in widest)
    return VerifySlots((*kept, drafts), drafts + 1)


def _num_drafts(flags: MetFlags, own: int, tree_nodes: int | None) -> int:
    if tree_nodes is not None:
        return max(tree_nodes - 1, 1)
    if flags.dflash:
        assert flags.dflash_gamma is not None
        return flags.dflash_gamma
    return flags.num_drafts if flags.num_drafts is not None else own or 1


def _spec_tokens(flags: MetFlags, drafts: int) -> int:
    if flags.dflash:
        return drafts + 1
    return drafts + 2 if flags.speculative else 1


def _prefill_budget(serve: Serve, shape: ModelShape) -> int:
    """Tokens of one prefill pass: as set, else a recurrent layer's chunk, else the default."""
    asked = serve.max_prefill_tokens
    budget = asked
    if asked == DEFAULT_PREFILL and shape.recurrent:
        budget = min(serve.max_seq_len, DEFAULT_PREFILL)
    if budget > PREFILL_LIMIT:
        return PREFILL_LIMIT // serve.block_size * serve.block_size
    return budget
