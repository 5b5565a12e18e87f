"""Verify steps: a committed token and its drafts as rows of one step, then what is accepted.

Without the draft head, drafts come from each sequence's own greedy continuation, one made wrong at
odd steps (diff.md 3.3); with it they are the head's, as in a serve (3.4). In a batch the head runs
beside drafts of the continuation, and accepts nothing (3.5).
Shapes: S sequences, R rows of a step, C drafts a step, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from metpipe.diff.argmax import argmax_rows
from metpipe.diff.speculation import count_accepted, draft_tokens
from metpipe.diff.trace import Trace
from metpipe.engine.pools import Sequence
from metpipe.stages.modes.recording import MS, Recording
from metpipe.stages.modes.steps import decode, prefill

__all__ = ["Spill", "drive_verify"]

Spill = Callable[[], object]
"""Saves the case's sequence and restores it elsewhere."""


def drive_verify(run: Recording, script: Trace | None, spill: Spill) -> None:
    """Prefill, then the case's verify steps; `spill` before the one that the case names."""
    verify = _Verify(run, script, spill)
    verify.prepare()
    with run.opened():
        verify.drive()


@dataclass(slots=True)
class _Verify:
    """A case's verify steps; `script` replays tokens and accept counts."""

    run: Recording
    script: Trace | None
    spill: Spill
    _continuations: list[list[int]] = field(default_factory=list)
    _committed: list[int] = field(default_factory=list)
    """position of each sequence's last committed token in its continuation"""
    _last: list[int] = field(default_factory=list)
    _drafts: list[list[int]] = field(default_factory=list)
    """what the head proposed last, for each sequence"""
    _written: tuple[str, ...] = ()
    """digests of what it wrote then"""

    def prepare(self) -> None:
        """What the reference drafts from, where that is not the head."""
        if self.script is None and not self.run.case.drafts_verified:
            self._continuations = self._continue()

    def drive(self) -> None:
        """All of it; the rows before the first step are the prefill's, then the head's."""
        case = self.run.case
        logits_SV, chosen = prefill(self.run, self.run.sequences)
        self._last = argmax_rows(logits_SV).tolist()
        self._committed = [1 if case.num_drafts else 0] * case.num_sequences
        rows = [logits_SV]
        ids: list[int] = []
        if self.script is None:
            self.run.expect_greatest(self._last, chosen)
        if case.num_drafts:
            boot_SV, boot_chosen, drafted_RV, ids = self._bootstrap()
            rows += [boot_SV, drafted_RV]
            chosen += boot_chosen
        self.run.prefilled(torch.cat(rows), chosen, ids)
        for step in range(case.steps):
            if case.spill == step:
                self.spill()
            self._step(step)
        self.run.following = tuple(self._last)

    def _continue(self) -> list[list[int]]:
        """Each sequence's greedy continuation by plain decode, as long as all steps may reach."""
        run = self.run
        count = run.case.steps * max(run.case.widths) + 2
        with run.guests(run.case.reserved) as sequences:
            logits_SV, _ = prefill(run, sequences)
            found = [[token] for token in argmax_rows(logits_SV).tolist()]
            for _ in range(count - 1):
                tokens = tuple(sequence[-1] for sequence in found)
                following = argmax_rows(decode(run, sequences, tokens)).tolist()
                for sequence, token in zip(found, following, strict=True):
                    sequence.append(token)
        return found

    def _bootstrap(self) -> tuple[torch.Tensor, list[int], torch.Tensor, list[int]]:
        """One plain step, whose hidden rows the first drafts start from."""
        if self.script is not None:
            self._last = list(self.script.drafted[0][: len(self._last)])
        fed = list(self._last)
        logits_SV = decode(self.run, self.run.sequences, tuple(fed)).clone()
        chosen = self.run.forward.chosen(len(fed))
        self._last = self._boot_choice(argmax_rows(logits_SV).tolist())
        if self.script is None:
            self.run.expect_greatest(self._last, chosen)
        self.run.forward.save_hidden(range(len(fed)))
        drafted_RV, ids = self._propose()
        return logits_SV, chosen, drafted_RV, [*fed, *self._last, *ids]

    def _boot_choice(self, own: list[int]) -> list[int]:
        """The tokens after the bootstrap: the reference's own, then the recorded ones."""
        if self.script is None:
            return own
        return list(self.script.drafted[0][len(own) : 2 * len(own)])

    def _propose(self) -> tuple[torch.Tensor, list[int]]:
        """The head's drafts behind the last tokens: logits [C * S, V], ids sequence by sequence."""
        run = self.run
        before = [sequence.draft_length for sequence in run.sequences]
        ids_SC, logits_CSV = run.forward.propose(run.sequences, self._last, run.case.num_drafts)
        self._drafts = ids_SC.tolist()
        self._written = run.model.digests.drafted(run.sequences, run.case.num_drafts)
        if not run.case.drafts_verified:
            for sequence, length in zip(run.sequences, before, strict=True):
                run.forward.trim(sequence, length)
        return logits_CSV.flatten(0, 1), [token for row in self._drafts for token in row]

    def _step(self, step: int) -> None:
        run, case = self.run, self.run.case
        tokens = self._tokens(step)
        logits_RV = run.timed(lambda: self._verify(tokens))
        chosen = run.forward.chosen(len(logits_RV))
        outputs = self._outputs(logits_RV, chosen)
        accepted = self._accepted(step, tokens, outputs)
        self._commit(tokens, accepted)
        self._last = self._next(step, accepted, outputs)
        rows = [logits_RV]
        ids: list[int] = []
        draft_ms = None
        if case.num_drafts:
            begin = time.perf_counter()
            drafted_RV, ids = self._propose()
            draft_ms = (time.perf_counter() - begin) * MS
            rows.append(drafted_RV)
        run.stepped(
            [token for row in tokens for token in row],
            torch.cat(rows),
            [count + 1 for count in accepted],
            chosen=chosen,
            accepted=accepted,
            ids=ids,
            drafted=self._written,
            draft_ms=draft_ms,
        )

    def _tokens(self, step: int) -> list[list[int]]:
        """The rows that each sequence feeds."""
        if self.script is not None:
            return self._split(list(self.script.fed[step]))
        return [self._own_tokens(step, index) for index in range(len(self._last))]

    def _own_tokens(self, step: int, index: int) -> list[int]:
        width = self.run.case.widths[index]
        if self.run.case.drafts_verified:
            return [self._last[index], *self._drafts[index][: width - 1]]
        drafts = draft_tokens(
            self._continuations[index],
            self._committed[index],
            step + index,
            width=width,
            vocab_size=self.run.model.vocab_size,
        )
        return [self._last[index], *drafts]

    def _verify(self, tokens: list[list[int]]) -> torch.Tensor:
        run = self.run
        if len(run.sequences) == 1:
            return run.forward.verify(run.sequences[0], tokens[0])
        return run.forward.verify_batch(run.sequences, tokens)

    def _outputs(self, logits_RV: torch.Tensor, chosen: list[int]) -> list[list[int]]:
        """The greedy choice of each row, by sequence; a replay has the reference's."""
        if self.script is not None:
            return []
        greatest = argmax_rows(logits_RV).tolist()
        self.run.expect_greatest(greatest, chosen)
        return self._split(greatest)

    def _accepted(self, step: int, tokens: list[list[int]], outputs: list[list[int]]) -> list[int]:
        if self.script is not None:
            return list(self.script.accepted[step])
        return [count_accepted(fed, out) for fed, out in zip(tokens, outputs, strict=True)]

    def _commit(self, tokens: list[list[int]], accepted: list[int]) -> None:
        """Rewind what was rejected, commit the rest; the head's cache keeps what is committed.

        It is trimmed before the commit where a draft was rejected, else behind it: the order of a
        serve (diff.md 3.4).
        """
        run, forward = self.run, self.run.forward
        first = [0, *accumulate(run.case.widths)][: len(tokens)]
        if run.case.num_drafts:
            forward.save_hidden([at + kept for at, kept in zip(first, accepted, strict=True)])
        for sequence, fed, kept in zip(run.sequences, tokens, accepted, strict=True):
            rejected = len(fed) - 1 - kept
            if run.case.drafts_verified and rejected:
                self._trim(sequence, kept)
            if rejected:
                forward.rewind(sequence, rejected)
            forward.commit(sequence, kept + 1)
            if run.case.drafts_verified and not rejected:
                self._trim(sequence, kept)
        self._committed = [
            at + kept + 1 for at, kept in zip(self._committed, accepted, strict=True)
        ]

    def _trim(self, sequence: Sequence, kept: int) -> None:
        """Keep the head's entries of tokens that are committed: the last one's, then the drafts'.

        Its last draft has no entry yet: it was proposed and never fed.
        """
        count = self.run.case.num_drafts
        length = sequence.draft_length - count + min(kept + 1, count)
        self.run.forward.trim(sequence, length)

    def _next(self, step: int, accepted: list[int], outputs: list[list[int]]) -> list[int]:
        """The token behind each sequence's last accepted row."""
        if self.script is None:
            return [out[kept] for out, kept in zip(outputs, accepted, strict=True)]
        if step + 1 == self.run.case.steps:
            return list(self.script.following)
        return [row[0] for row in self._tokens(step + 1)]

    def _split(self, rows: list[int]) -> list[list[int]]:
        """A value for each row of the step, by sequence."""
        widths = self.run.case.widths
        ends = accumulate(widths)
        return [rows[end - width : end] for width, end in zip(widths, ends, strict=True)]
