"""One case under one forward: its sequences, its trace, and what is compared while it runs.

Shapes: R rows of logits, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from metpipe.diff.digest import row_digests
from metpipe.diff.states import differing_labels
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.gpu import wait
from metpipe.engine.model import Model
from metpipe.engine.pools import Sequence as Opened
from metpipe.engine.state_digests import U64
from metpipe.stages.modes.case import Case, slots_of
from metpipe.stages.modes.unowned import UnownedBytes

__all__ = ["MS", "Recording", "Watch"]

MS = 1000.0


class Watch(Protocol):
    """Is shown every row of logits, and may know their digests already."""

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> tuple[str, ...] | None:
        """Take the rows of a step (None: of the prefill); their digests, if they are known."""

    def ids(self, step: int | None, ids: Sequence[int]) -> object:
        """Take the ids that a step chose, then those of its draft head."""

    def states(self, step: int, digests: Sequence[str]) -> object:
        """Take what each sequence wrote in a step."""


@dataclass(slots=True)
class Recording:
    """Opens a case's sequences and records what a driver runs on them."""

    model: Model
    forward: Forward
    case: Case
    watch: Watch
    check_steps: bool
    """Digest what no sequence owns after every step, not only at the ends."""
    tick: Callable[[], object] = lambda: None
    sequences: list[Opened] = field(default_factory=list)
    _spare: Opened | None = None
    _held: list[Opened] = field(default_factory=list)
    _before: dict[str, str] = field(default_factory=dict)
    _moved_at: int | None = None
    _moved_between: set[str] = field(default_factory=set)
    _blocks: list[dict[str, U64]] = field(default_factory=list)
    """hashes of the rows of each sequence's blocks, as it was opened"""
    contradictions: list[str] = field(default_factory=list)
    """where the run does not agree with itself, whatever the reference did"""
    _chosen: list[tuple[int, ...]] = field(default_factory=list)
    _prefill: tuple[str, ...] = ()
    _fed: list[tuple[int, ...]] = field(default_factory=list)
    _steps: list[tuple[str, ...]] = field(default_factory=list)
    _states: list[tuple[str, ...]] = field(default_factory=list)
    _accepted: list[tuple[int, ...]] = field(default_factory=list)
    _drafted: list[tuple[int, ...]] = field(default_factory=list)
    _enqueue_ms: list[float] = field(default_factory=list)
    _step_ms: list[float] = field(default_factory=list)
    _draft_ms: list[float] = field(default_factory=list)
    _ends: dict[str, str] = field(default_factory=dict)
    _slots: tuple[int, ...] = ()
    following: tuple[int, ...] = ()
    """of a verify, the token behind each sequence's last"""
    _after: dict[str, str] = field(default_factory=dict)
    _prefilled_before: int = 0
    extra_states: dict[str, str] = field(default_factory=dict)
    """Further digests to compare at the end: of a record that was spilled."""

    @contextmanager
    def opened(self) -> Iterator[list[Opened]]:
        """The case's sequences, with blocks for all they will hold; closed in reverse order."""
        try:
            self.model.poison()
            self._open()
            self._prefilled_before = self.forward.prefilled
            self._before, self._blocks = self._fresh()
            yield self.sequences
            self._ends = self._state_digests() | self.extra_states
            self._after = self._unowned()
            self._note_reserved()
            if self.unowned().moved:
                self.model.distrust()
        finally:
            self._close()

    @contextmanager
    def guests(self, reserved: Sequence[int]) -> Iterator[list[Opened]]:
        """Sequences beside the case's for a while, with room for so many tokens each.

        No record is kept of them, but what they and the case's do not own must not move.
        """
        guests: list[Opened] = []
        try:
            for tokens in reserved:
                guests.append(self.model.open(reserve=tokens))
            before = self.model.unowned_digests(*self.sequences, *guests)
            yield guests
            after = self.model.unowned_digests(*self.sequences, *guests)
            self._moved_between.update(differing_labels(before, after))
        finally:
            while guests:
                self.model.close(guests.pop())

    def rebase(self) -> None:
        """Take what nobody owns as it is, and count prefilled tokens from here: a guest left."""
        self._prefilled_before = self.forward.prefilled
        self._before = self._unowned()

    def leave_sequence(self) -> Opened:
        """The case's only sequence, which stays open as nobody's; nothing may have moved yet."""
        self._moved_between.update(differing_labels(self._before, self._unowned()))
        self._note_reserved()
        (self._spare,) = self.sequences
        self.sequences.clear()
        return self._spare

    def take_sequence(self, new: Opened) -> None:
        """Go on with another sequence: from now on only what it owns may move."""
        self.sequences.append(new)
        self._before = self._unowned()
        self._blocks = [self.model.digests.block_rows(new)]

    def timed(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The step's logits as a copy; its times are kept."""
        begin = time.perf_counter()
        logits_RV = call()
        enqueued = time.perf_counter()
        wait(logits_RV.device)
        done = time.perf_counter()
        self.forward.seconds += done - enqueued
        self._enqueue_ms.append((enqueued - begin) * MS)
        self._step_ms.append((done - begin) * MS)
        return logits_RV.clone()

    def prefilled(
        self, logits_RV: torch.Tensor, chosen: Sequence[int], ids: Sequence[int] = ()
    ) -> None:
        """All rows before the first step, and the ids that the forward chose for them."""
        self._prefill = self._digests(None, logits_RV)
        self._note_ids(None, chosen, ids)

    def stepped(
        self,
        fed: Sequence[int],
        logits_RV: torch.Tensor,
        counts: Sequence[int],
        *,
        chosen: Sequence[int],
        accepted: Sequence[int] = (),
        ids: Sequence[int] = (),
        drafted: Sequence[str] = (),
        draft_ms: float | None = None,
    ) -> None:
        """One step, once what it commits is committed: `counts` tokens of each sequence.

        `chosen`: the greedy ids of the main model's rows. `drafted`: of each sequence, the digest
        of what the draft head wrote.
        """
        step = len(self._fed)
        self._fed.append(tuple(fed))
        self._steps.append(self._digests(step, logits_RV))
        written = self.model.digests.written(self.sequences, counts)
        if drafted:
            written = tuple(main + draft for main, draft in zip(written, drafted, strict=True))
        self.watch.states(step, written)
        self._states.append(written)
        if draft_ms is not None:
            self._draft_ms.append(draft_ms)
        if accepted:
            self._accepted.append(tuple(accepted))
        self._note_ids(step, chosen, ids)
        self._check_unowned(step)
        self.tick()

    @property
    def num_steps(self) -> int:
        """Steps that are done."""
        return len(self._fed)

    def trace(self) -> Trace:
        """The record of the whole run."""
        return Trace(
            prompts=self.case.prompts,
            fed=tuple(self._fed),
            prefill_digests=self._prefill,
            step_digests=tuple(self._steps),
            step_states=tuple(self._states),
            state_digests=self._ends,
            enqueue_ms=tuple(self._enqueue_ms),
            step_ms=tuple(self._step_ms),
            accepted=tuple(self._accepted),
            drafted=tuple(self._drafted),
            chosen=tuple(self._chosen),
            draft_ms=tuple(self._draft_ms),
            following=self.following,
            slots=self._slots,
            computed=self.forward.prefilled - self._prefilled_before,
        )

    def unowned(self) -> UnownedBytes:
        """What nobody owned, before and after."""
        between = tuple(sorted(self._moved_between))
        return UnownedBytes(self._before, self._after, self._moved_at, between)

    def _digests(self, step: int | None, logits_RV: torch.Tensor) -> tuple[str, ...]:
        known = self.watch.rows(step, logits_RV)
        return known or row_digests(logits_RV, hash_rows=self.model.hash_rows)

    def expect_greatest(self, greatest: Sequence[int], chosen: Sequence[int]) -> None:
        """Say where the ids that the forward chose are not those of its greatest logits."""
        if list(greatest) != list(chosen):
            step = len(self._fed)
            where = f"before step {step}" if step else "in the prefill"
            self.contradictions.append(
                f"{self.forward.name}, {self.case.full_name}: the ids that it chose {where} are "
                "not those of its greatest logits."
            )

    def expect_restored(self, held: Mapping[str, str], sequence: Opened) -> None:
        """Say which states of a record are not as they were saved."""
        lost = differing_labels(held, self.model.state_digests(sequence))
        if lost:
            self.contradictions.append(
                f"{self.forward.name}, {self.case.full_name}: {', '.join(lost)} was not restored "
                "as it was saved."
            )

    def _note_ids(self, step: int | None, chosen: Sequence[int], ids: Sequence[int]) -> None:
        self._chosen.append(tuple(chosen))
        if self.case.num_drafts:
            self._drafted.append(tuple(ids))
        self.watch.ids(step, (*chosen, *ids))

    def _check_unowned(self, step: int) -> None:
        if not self.check_steps or self._moved_at is not None:
            return
        self._note_reserved()
        if self._unowned() != self._before or self._moved_between:
            self._moved_at = step

    def _unowned(self) -> dict[str, str]:
        """Of padding's slot and block too, where no step of the case has padding."""
        return self.model.unowned_digests(*self.sequences, dummies=not self.case.pads)

    def _fresh(self) -> tuple[dict[str, str], list[dict[str, U64]]]:
        """Digests of what nobody owns, and of each row of the sequences' blocks, before any step.

        After poison they are those of every run with the same layout, unless a tenant was there.
        """
        layout = tuple((one.slot, *one.blocks) for one in self.sequences)
        key = (self.case.held, self.case.fragmented, self.case.pads, layout)
        known = None if self.case.tenant else self.model.fresh.get(key)
        if known is None:
            blocks = [self.model.digests.block_rows(one) for one in self.sequences]
            known = self._unowned(), blocks
            if not self.case.tenant:
                self.model.fresh[key] = known
        return known

    def _note_reserved(self) -> None:
        """What moved in the sequences' blocks behind the last row that a step wrote."""
        for one, before in zip(self.sequences, self._blocks, strict=True):
            self._moved_between.update(self.model.digests.moved_behind(one, before))

    def _open(self) -> None:
        """Slots 0, 1, ... in order; fragmented, with a gap in the middle and scattered blocks."""
        case, model = self.case, self.model
        self._let_tenant_run()
        self._held = [model.open(reserve=1) for _ in range(case.held)]
        for index in range(case.num_sequences):
            if case.fragmented and index == case.num_sequences // 2:
                self._spare = model.open(reserve=1)
            self.sequences.append(model.open())
        self._slots = tuple(sequence.slot for sequence in self.sequences)
        self._check_slots()
        if case.fragmented:
            model.pool.reserve_scattered(self.sequences, case.reserved)
            return
        for sequence, tokens in zip(self.sequences, case.reserved, strict=True):
            model.pool.reserve(sequence, tokens)

    def _let_tenant_run(self) -> None:
        """Another sequence in the first slot, which leaves its state behind."""
        if self.case.tenant:
            with self.guests((len(self.case.tenant),)) as (tenant,):
                self.forward.prefill(tenant, self.case.tenant)

    def _check_slots(self) -> None:
        """Every run of a case must be handed the same slots, or it would compare other layouts."""
        case = self.case
        wanted = slots_of(case.num_sequences, fragmented=case.fragmented, held=case.held)
        if self._slots != wanted:
            raise RuntimeError(f"{self.case.full_name}: slots {self._slots}, not {wanted}")

    def _state_digests(self) -> dict[str, str]:
        if len(self.sequences) == 1:
            return self.model.state_digests(self.sequences[0])
        return {
            f"sequence {index}, {label}": digest
            for index, sequence in enumerate(self.sequences)
            for label, digest in self.model.state_digests(sequence).items()
        }

    def _close(self) -> None:
        """In reverse order of opening, so that the next run is handed the same slots."""
        half = self.case.num_sequences // 2
        for index in reversed(range(len(self.sequences))):
            self.model.close(self.sequences[index])
            if self._spare is not None and index == half:
                self.model.close(self._spare)
                self._spare = None
        if self._spare is not None:
            self.model.close(self._spare)
        while self._held:
            self.model.close(self._held.pop())
