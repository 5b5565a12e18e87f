"""A group bound both ways on memory of its own: filled, run, and handed over for comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from metpipe.circuit import Plan
from metpipe.engine.gpu import wait
from metpipe.engine.microtest.candidate import Candidate, Kernels
from metpipe.engine.microtest.filling import Start, starting_values
from metpipe.engine.microtest.guarded import Guarded, count_unequal, fill
from metpipe.engine.microtest.memory import (
    Memory,
    argument_sources,
    shared_memory,
    side_memory,
    snapshots_label,
    state_label,
)
from metpipe.engine.microtest.places import Place
from metpipe.engine.microtest.step_layout import lay_out
from metpipe.engine.microtest.trial import Trial, pair_of
from metpipe.engine.program import Launch, compile_program
from metpipe.engine.scratch import reserve_scratch
from metpipe.engine.torch_threads import torch_threads
from metpipe.errors import ConfigError

__all__ = ["Bench", "Side"]


@dataclass(frozen=True, slots=True)
class Side:
    """The buffers of one side, and its launches."""

    memory: Memory
    launches: tuple[Launch, ...]
    device: torch.device

    def run(self) -> None:
        """Launch one after the other (small kernels then wake no threads), until all is done."""
        for launch in self.launches:
            launch()
        wait(self.device)


class Bench:
    """Binds a place once and runs it on any kind of values; the buffers stay where they are."""

    def __init__(self, candidate: Candidate, place: Place, seed: int = 0) -> None:
        """Allocate and bind.

        Raises:
            ConfigError: a kernel of the rule refuses its arguments, or does not compile.
        """
        self.candidate, self.place, self._seed = candidate, place, seed
        self._device = candidate.device
        vocab_size = place.circuit.dims["vocab"]
        block_size = candidate.builtin.hardware.block_size
        self._layout = lay_out(place.mode, place.rows, block_size, vocab_size)
        self._shared: dict[str, Guarded] = dict(shared_memory(place, self._layout, self._device))
        self._reserve()
        self.chain = self._side(place.chain, candidate.builtin.functions)
        try:
            self.rule = self._side(place.fused, candidate.kernels)
        except ConfigError:
            raise
        except Exception as error:  # a user's kernel may raise anything, a compiler's error too
            raise self.failure("could not be bound", error) from error

    def trial(self, kind: str) -> Trial:
        """Fill everything with values of a kind, run both sides, then the rule once more.

        Raises:
            ConfigError: a kernel of the rule raises.
        """
        start = self.fill(kind)
        self.chain.run()
        self._run_rule()
        first = {label: self.rule.memory[label].tensor.clone() for label in self._compared}
        moved = dict(self._moved(start))
        self._refill(self.rule, start)
        self._run_rule()
        pairs, unrepeated = [], []
        for label, once in first.items():
            chain = self.chain.memory[label].tensor
            pairs.append(pair_of(self.place, label, chain, once, start.get(label)))
            if count_unequal(once, self.rule.memory[label].tensor):
                unrepeated.append(label)
        return Trial(self.place, kind, tuple(pairs), moved, tuple(unrepeated))

    def fill(self, kind: str) -> Start:
        """Write values of a kind into weights, inputs and pools, and marks into outputs."""
        with torch_threads(1):
            drawn = starting_values(
                self.place,
                self._layout,
                kind,
                self._seed,
                own=self.chain.memory,
                shared=self._shared,
            )
            start = {label: values.to(self._device) for label, values in drawn.items()}
            for label, buffer in self._shared.items():
                buffer.tensor.copy_(start[label])
            for side in (self.chain, self.rule):
                self._refill(side, start)
        return start

    @property
    def _compared(self) -> tuple[str, ...]:
        place = self.place
        written = map(state_label, place.written_states)
        return (*place.outputs, *written, *map(snapshots_label, place.kept_states))

    @property
    def _read_only(self) -> Iterator[tuple[str, Guarded]]:
        """What the rule may not change, its own copies of the inputs among it."""
        place, own = self.place, self.rule.memory
        read = [state for state in place.states if state not in place.written_states]
        yield from ((label, own[label]) for label in (*place.inputs, *map(state_label, read)))
        yield from self._shared.items()

    def _side(self, plan: Plan, kernels: Kernels) -> Side:
        memory = side_memory(self.place, plan, self._layout, self._device)
        sources = argument_sources(self.place, self._layout, memory, self._shared)
        launches = compile_program(plan, self.place.rows, sources, kernels).launches
        return Side(memory, launches, self._device)

    def _reserve(self) -> None:
        """The set's scratch memory, as an engine of this circuit would take it."""

        def take(num_bytes: int) -> torch.Tensor:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

        reserve_scratch(self.place.circuit, self.candidate.builtin, self._layout.most_tokens, take)

    def _refill(self, side: Side, start: Start) -> None:
        """A kernel may read weights and pools before the launch before it has finished: wait."""
        for label, buffer in side.memory.items():
            if label in start:
                buffer.tensor.copy_(start[label])
            else:
                fill(buffer.tensor)
        wait(self._device)

    def _moved(self, start: Start) -> Iterator[tuple[str, int]]:
        """What the rule's kernels changed beside their outputs; it is put back."""
        for label, buffer in (*self.rule.memory.items(), *self._shared.items()):
            if beyond := buffer.trespass():
                buffer.restore()
                yield f"around {label}", beyond
        for label, buffer in self._read_only:
            if changed := count_unequal(buffer.tensor, start[label]):
                buffer.tensor.copy_(start[label])
                yield label, changed

    def _run_rule(self) -> None:
        try:
            self.rule.run()
        except Exception as error:  # a kernel may be plain Python
            raise self.failure("raised when it was launched", error) from error

    def failure(self, what: str, error: Exception) -> ConfigError:
        """What a kernel of the rule did wrong, and where."""
        rule = self.candidate.rule
        names = " or ".join(kernel.name for kernel in rule.kernels)
        line = str(error).strip().partition("\n")[0]
        return ConfigError(
            f"{rule.source}, rule {rule.id}: its kernel {names} {what} ({self.place.text}): "
            f"{type(error).__name__}: {line}"
        )
