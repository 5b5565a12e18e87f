"""A forward as the diff drives it: prefill and decode of one sequence, and its disclosure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import torch

from metpipe.engine.disclosure import Coverage, Disclosure, PlanFacts
from metpipe.engine.pools import Sequence, SequencePool
from metpipe.engine.program import Launch
from metpipe.engine.step_inputs import StepInputs

__all__ = ["BoundStep", "Forward", "Runner"]


@dataclass(frozen=True, slots=True)
class BoundStep:
    """One (mode, rows) ready to launch, and where its logits [sequences, V] will lie."""

    run: Launch
    """the whole step"""
    logits_SV: torch.Tensor
    kernels: Mapping[str, int]
    """kernel name -> launches of it"""
    plan: PlanFacts | None
    """None for the hand-written forward"""


class Runner(Protocol):
    """Makes bound steps: by hand (legacy) or from a plan (circuit). It owns its buffers."""

    def bind(self, mode: str, rows: int, sequences: int) -> BoundStep:
        """The launches of a step of `rows` rows over `sequences` sequences."""

    def kernel_digest(self, kernel: str) -> str:
        """The digest of a kernel that this runner launches."""

    def close(self) -> None:
        """Give the buffers back."""


@dataclass(slots=True)
class Forward:
    """Drives a runner over pooled sequences. Logits are views that the next step overwrites."""

    name: str
    kind: str
    runner: Runner
    pool: SequencePool
    step: StepInputs
    max_prefill_rows: int
    _bound: dict[tuple[str, int], BoundStep] = field(default_factory=dict)
    _ran: Counter[tuple[str, int]] = field(default_factory=Counter)

    def prefill(self, sequence: Sequence, tokens: Items[int]) -> torch.Tensor:
        """Run the prompt, in chunks of at most the prefill budget; logits [V] of its last token."""
        if not tokens:
            raise ValueError("prefill of no tokens")
        for start in range(0, len(tokens), self.max_prefill_rows):
            logits_V = self._run("prefill", sequence, tokens[start : start + self.max_prefill_rows])
        return logits_V

    def decode(self, sequence: Sequence, token: int) -> torch.Tensor:
        """Append one token; logits [V] after it."""
        return self._run("decode", sequence, (token,))

    def _run(self, mode: str, sequence: Sequence, tokens: Items[int]) -> torch.Tensor:
        rows = len(tokens)
        self.pool.reserve(sequence, sequence.length + rows)
        self.step.fill_run(sequence, tokens)
        bound = self._bound_step(mode, rows)
        bound.run()
        sequence.length += rows
        self._ran[mode, rows] += 1
        return bound.logits_SV[0]

    def bind_all(self) -> None:
        """Bind the one-row decode and the widest prefill, so that every buffer is allocated."""
        for mode, rows in (("decode", 1), ("prefill", self.step.max_rows)):
            self._bound_step(mode, rows)

    def _bound_step(self, mode: str, rows: int) -> BoundStep:
        if (mode, rows) not in self._bound:
            self._bound[mode, rows] = self.runner.bind(mode, rows, sequences=1)
        return self._bound[mode, rows]

    def disclose(self) -> Disclosure:
        """What has run so far under this forward."""
        launches: Counter[str] = Counter()
        for key, times in self._ran.items():
            for kernel, count in self._bound[key].kernels.items():
                launches[kernel] += count * times
        plans = {
            key: plan for key in sorted(self._ran) if (plan := self._bound[key].plan) is not None
        }
        decode = self._bound.get(("decode", 1))
        return Disclosure(
            forward=self.kind,
            plan_digests={f"{mode} {rows}": plan.digest for (mode, rows), plan in plans.items()},
            kernel_digests={kernel: self.runner.kernel_digest(kernel) for kernel in launches},
            launches=dict(launches),
            launches_per_step=sum(decode.kernels.values()) if decode else None,
            rules=tuple(sorted({rule for plan in plans.values() for rule in plan.rules})),
            coverage=tuple(
                Coverage(mode, rows, plan.groups, plan.bit_identical)
                for (mode, rows), plan in plans.items()
            ),
        )

    def close(self) -> None:
        """Drop the programs and give the runner's buffers back."""
        self._bound.clear()
        self.runner.close()
