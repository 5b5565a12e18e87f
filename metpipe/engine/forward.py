"""A forward as the diff drives it: steps of one or many sequences, drafts, and its disclosure.

Shapes: S sequences, R rows of a step, V vocabulary, D hidden.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import torch

from metpipe.circuit import padded_rows
from metpipe.engine.disclosure import Coverage, Disclosure, PlanFacts, digest_of_names
from metpipe.engine.graphs import Captured, capture
from metpipe.engine.pools import Sequence
from metpipe.engine.program import Launch
from metpipe.engine.step_inputs import RowRun

if TYPE_CHECKING:
    from metpipe.engine.model import Model

__all__ = ["BoundStep", "Forward", "Observer", "Runner"]

Key = tuple[str, int]
"""Mode and rows of a step."""
MAX_LAYOUTS = 8
"""Slot layouts of one (mode, rows) that are disclosed; a run has one, or two where it changes."""


@dataclass(frozen=True, slots=True)
class BoundStep:
    """One (mode, rows) ready to launch, and where its outputs will lie."""

    run: Launch
    """the whole step"""
    logits_SV: torch.Tensor
    tokens_S1: torch.Tensor
    """the greedy choice of each row of logits, i32"""
    hidden_RD: torch.Tensor | None
    """the stream before the final norm; None where there is no draft head"""
    kernels: tuple[str, ...]
    """the kernel of each launch, in their order"""
    plan: PlanFacts | None
    """None for the hand-written forward"""


class Observer(Protocol):
    """Is handed a step that is ready to run, and runs it."""

    def __call__(self, mode: str, rows: int, runs: Items[RowRun], bound: BoundStep) -> None:
        """Run `bound`, whole or launch by launch."""


class Runner(Protocol):
    """Makes bound steps: by hand (legacy) or from a plan (circuit). It owns its buffers."""

    def bind(self, mode: str, rows: int) -> BoundStep:
        """The launches of a step of `rows` rows."""

    def kernel_digest(self, kernel: str) -> str:
        """The digest of a kernel that this runner launches."""

    def close(self) -> None:
        """Give the buffers back."""


@dataclass(frozen=True, slots=True)
class _Verified:
    """A verify step that is not committed yet."""

    width: int
    first_snapshot: int


Given = ParamSpec("Given")
Result = TypeVar("Result")


def counted(
    method: Callable[Concatenate[Forward, Given], Result],
) -> Callable[Concatenate[Forward, Given], Result]:
    """The method, whose wall time is the forward's: once, where one such calls another."""

    @wraps(method)
    def call(forward: Forward, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if forward.inside:
            return method(forward, *args, **kwargs)
        begin, forward.inside = time.perf_counter(), True
        try:
            return method(forward, *args, **kwargs)
        finally:
            forward.seconds += time.perf_counter() - begin
            forward.inside = False

    return call


@dataclass(slots=True)
class Forward:
    """Drives a runner over pooled sequences. Logits are views that the next step overwrites."""

    name: str
    kind: str
    runner: Runner
    model: Model
    graphs: bool = False
    """whether a step is captured when it is bound, and replayed"""
    seconds: float = 0.0
    """wall time inside it so far: its steps, and what belongs to them"""
    inside: bool = False
    """whether a call is running, whose time counts"""
    prefilled: int = 0
    """prompt tokens that were computed so far"""
    observe: Observer | None = None
    """runs each step in the forward's place, to look at it from inside"""
    _bound: dict[Key, BoundStep] = field(default_factory=dict)
    _ran: Counter[Key] = field(default_factory=Counter)
    _layouts: dict[Key, list[tuple[int, ...]]] = field(default_factory=dict)
    _verified: dict[Sequence, _Verified] = field(default_factory=dict)
    _last: BoundStep | None = None

    @counted
    def prefill(
        self, sequence: Sequence, tokens: Items[int], chunk: int | None = None
    ) -> torch.Tensor:
        """Run the prompt from the sequence's length on; logits [V] of its last token.

        In passes of at most `chunk` tokens, and never more than the prefill budget.
        """
        if not tokens:
            raise ValueError("prefill of no tokens")
        limit = min(chunk or self.model.sizes.max_prefill_rows, self.model.sizes.max_prefill_rows)
        self.prefilled += len(tokens)
        for start in range(0, len(tokens), limit):
            logits_SV = self._step("prefill", ((sequence, tokens[start : start + limit]),))
        return logits_SV[0]

    @counted
    def decode(self, sequence: Sequence, token: int) -> torch.Tensor:
        """Append one token; logits [V] after it."""
        return self._step("decode", ((sequence, (token,)),))[0]

    @counted
    def decode_batch(
        self, sequences: Items[Sequence], tokens: Items[int], *, padded: bool = True
    ) -> torch.Tensor:
        """Append one token to each sequence; logits [S, V]. Padded up to the ladder's rung."""
        rows = padded_rows(len(sequences)) if padded else len(sequences)
        runs = [(one, (token,)) for one, token in zip(sequences, tokens, strict=True)]
        return self._step("multi_seq", runs, rows)[: len(sequences)]

    @counted
    def verify(self, sequence: Sequence, tokens: Items[int]) -> torch.Tensor:
        """Run the committed token and its drafts as one step; logits [K, V]. Then `commit`."""
        return self._verify("verify", (sequence,), (tokens,))

    @counted
    def verify_batch(self, sequences: Items[Sequence], tokens: Items[Items[int]]) -> torch.Tensor:
        """As `verify` for each sequence, sequence-major; logits [sum of K, V]."""
        return self._verify("verify_batch", sequences, tokens)

    def rewind(self, sequence: Sequence, rejected: int) -> None:
        """Take the last `rejected` tokens of a verify back from the sequence's length."""
        sequence.length -= rejected

    @counted
    def commit(self, sequence: Sequence, kept: int) -> None:
        """Make the recurrent state the one after row `kept` - 1 of the sequence's last verify.

        Raises ValueError when there is no such verify, or not so many rows were in it.
        """
        verified = self._verified.pop(sequence, None)
        if verified is None or not 1 <= kept <= verified.width:
            raise ValueError(f"commit of {kept} rows of {verified}")
        if kept < verified.width:
            for name, snapshots in self.model.snapshots.items():
                self.model.states[name][sequence.slot].copy_(
                    snapshots[verified.first_snapshot + kept - 1]
                )

    def chosen(self, rows: int) -> list[int]:
        """The greedy ids that the last step gave for its first `rows` rows of logits."""
        assert self._last is not None, "no step ran"
        found: list[int] = self._last.tokens_S1[:rows, 0].tolist()
        return found

    @counted
    def save_hidden(self, rows: Items[int]) -> None:
        """Let the next drafts start from these rows of the last step, one for each sequence."""
        assert self._last is not None, "no step ran"
        assert self._last.hidden_RD is not None, "the model has no draft head"
        self._drafter_hidden(len(rows)).copy_(self._last.hidden_RD[list(rows)])

    @counted
    def propose(
        self, sequences: Items[Sequence], tokens: Items[int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` drafts behind each sequence's token, from the hidden rows that were saved.

        Returns the ids, i32 [S, count], and the logits of all drafts, bf16 [count, S, V].
        """
        ids, logits = [], []
        fed = list(tokens)
        for _ in range(count):
            bound = self._draft(sequences, fed)
            ids.append(bound.tokens_S1[: len(sequences), 0].clone())
            logits.append(bound.logits_SV[: len(sequences)].clone())
            fed = ids[-1].tolist()
        return torch.stack(ids, dim=1), torch.stack(logits)

    def trim(self, sequence: Sequence, length: int) -> None:
        """Shorten the draft head's cache of the sequence to `length` tokens."""
        if not 0 <= length <= sequence.draft_length:
            raise ValueError(f"trim to {length} of {sequence.draft_length} drafted tokens")
        sequence.draft_length = length

    def _draft(self, sequences: Items[Sequence], tokens: Items[int]) -> BoundStep:
        count = len(sequences)
        for one in sequences:
            self.model.pool.reserve(one, one.draft_length + 1)
        runs = [
            RowRun(one, (token,), one.draft_length)
            for one, token in zip(sequences, tokens, strict=True)
        ]
        bound = self._launch("draft", runs, padded_rows(count))
        assert bound.hidden_RD is not None, "the draft head keeps its stream"
        self._drafter_hidden(count).copy_(bound.hidden_RD[:count])
        for one in sequences:
            one.draft_length += 1
        return bound

    def _drafter_hidden(self, count: int) -> torch.Tensor:
        hidden_SD = self.model.drafter_hidden_SD
        assert hidden_SD is not None, "the pools were not sized for drafts"
        return hidden_SD[:count]

    def _verify(
        self, mode: str, sequences: Items[Sequence], tokens: Items[Items[int]]
    ) -> torch.Tensor:
        runs, first = [], 0
        for one, rows in zip(sequences, tokens, strict=True):
            self.model.pool.reserve(one, one.length + len(rows))
            runs.append(RowRun(one, rows, one.length, first))
            self._verified[one] = _Verified(len(rows), first)
            first += len(rows) - 1
        logits_SV = self._launch(mode, runs, sum(map(len, tokens))).logits_SV
        for one, rows in zip(sequences, tokens, strict=True):
            one.length += len(rows)
        return logits_SV

    def _step(
        self, mode: str, runs: Items[tuple[Sequence, Items[int]]], rows: int | None = None
    ) -> torch.Tensor:
        for one, tokens in runs:
            self.model.pool.reserve(one, one.length + len(tokens))
        filled = [RowRun(one, tokens, one.length) for one, tokens in runs]
        bound = self._launch(mode, filled, rows or sum(len(tokens) for _, tokens in runs))
        for one, tokens in runs:
            one.length += len(tokens)
        return bound.logits_SV

    def _launch(self, mode: str, runs: Items[RowRun], rows: int) -> BoundStep:
        self.model.step.fill(runs, rows)
        bound = self._bound_step(mode, rows)
        if self.observe is None:
            bound.run()
        else:
            self.observe(mode, rows, runs, bound)
        self._ran[mode, rows] += 1
        _note_reach(mode, runs)
        self._note_slots((mode, rows), tuple(run.sequence.slot for run in runs))
        self._last = bound
        return bound

    def _note_slots(self, key: Key, slots: tuple[int, ...]) -> None:
        seen = self._layouts.setdefault(key, [])
        if slots not in seen and len(seen) < MAX_LAYOUTS:
            seen.append(slots)

    def bind_all(self) -> None:
        """Bind the widest step of each mode, so that every buffer is allocated."""
        for mode, rows in self.model.sizes.runs:
            self._bound_step(mode, rows)

    def _bound_step(self, mode: str, rows: int) -> BoundStep:
        if (mode, rows) not in self._bound:
            bound = self.runner.bind(mode, rows)
            if self.graphs:
                bound = replace(bound, run=capture(bound.run))
            self._bound[mode, rows] = bound
        return self._bound[mode, rows]

    def disclose(self) -> Disclosure:
        """What has run so far under this forward."""
        launches: Counter[str] = Counter()
        for key, times in self._ran.items():
            for kernel in self._bound[key].kernels:
                launches[kernel] += times
        plans = {
            key: plan for key in sorted(self._ran) if (plan := self._bound[key].plan) is not None
        }
        decode = self._bound.get(("decode", 1))
        captured = [b.run for b in self._bound.values() if isinstance(b.run, Captured)]
        return Disclosure(
            forward=self.kind,
            plan_digests={f"{mode} {rows}": plan.digest for (mode, rows), plan in plans.items()},
            kernel_digests={kernel: self.runner.kernel_digest(kernel) for kernel in launches},
            launches=dict(launches),
            launches_per_step=len(decode.kernels) if decode else None,
            rules=tuple(sorted({rule for plan in plans.values() for rule in plan.rules})),
            coverage=tuple(
                Coverage(mode, rows, plan.groups, plan.bit_identical)
                for (mode, rows), plan in plans.items()
            ),
            slots={f"{mode} {rows}": tuple(at) for (mode, rows), at in self._layouts.items()},
            paths={
                f"{mode} {rows}": digest_of_names(self._bound[mode, rows].kernels)
                for mode, rows in sorted(self._ran)
            },
            steps={f"{mode} {rows}": count for (mode, rows), count in sorted(self._ran.items())},
            seconds=self.seconds,
            graphs=self.graphs,
            captures=len(captured),
            replays=sum(step.replays for step in captured),
        )

    def close(self) -> None:
        """Drop the programs and give the runner's buffers back."""
        self._bound.clear()
        self.runner.close()


def _note_reach(mode: str, runs: Items[RowRun]) -> None:
    """How far each sequence's cache has been written: what lies behind is nobody's yet."""
    for run in runs:
        end = run.position + len(run.tokens)
        if mode == "draft":
            run.sequence.draft_reached = max(run.sequence.draft_reached, end)
        else:
            run.sequence.reached = max(run.sequence.reached, end)
