"""Whether this machine has the memory that a run's cases need, and what would fit if not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from metpipe.circuit import Circuit
from metpipe.engine.checkpoints import Checkpoint, free_on, gib, machine_memory, place_of
from metpipe.engine.gpu import find_gpu
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.opening import check_room, needed_bytes
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.serve_flags import ExecutedServe
from metpipe.errors import ConfigError
from metpipe.nouns import number_of
from metpipe.stages.live import Live
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.needs import one_sequence, sizes_for

__all__ = ["Room"]

KEYS = {"batch": "batch", "verify_batch": "verify_batch", "prefill": "prefill"}
"""Mode -> the key whose numbers make its cases large; of the others the steps or prompts do."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What could be less: a key, what it asks for, and the pools for any number of it."""

    key: str
    what: str
    noun: str
    number: int
    sizes: Callable[[int], PoolSizes]


@dataclass(frozen=True, slots=True)
class Room:
    """Memory where a model shall lie: what is free there, or all of it."""

    checkpoint: Checkpoint
    circuit: Circuit
    sets: KernelSets
    serve: ExecutedServe
    num_bytes: int
    said: str
    """`are free on this machine`: what num_bytes are"""

    @classmethod
    def free(cls, live: Live) -> Room:
        """What nobody has taken, other models of this process among them."""
        device = live.sets.device
        free = free_on(device)
        said = f"are free on this {place_of(device)}"
        return cls(live.checkpoint(), live.circuit(), live.sets, live.serve(), free, said)

    @classmethod
    def empty(cls, live: Live) -> Room:
        """All that there is: beyond it nothing ever fits."""
        device = live.sets.device
        gpu = find_gpu() if device.type == "cuda" else None
        total = machine_memory() if gpu is None else gpu.memory_bytes
        said = f"are all that this {place_of(device)} has"
        return cls(live.checkpoint(), live.circuit(), live.sets, live.serve(), total, said)

    def check_prompt(self, key: str, tokens: int) -> None:
        """Refuse one prompt of `tokens` tokens that does not fit, before it is made.

        Raises:
            ConfigError: saying which length would fit.
        """
        asked = _Asked(
            key,
            f"a prompt of {number_of(tokens, 'token')}",
            "token",
            tokens,
            lambda number: one_sequence(number, self.serve),
        )
        self._check(asked, asked.sizes(tokens))

    def check_cases(self, cases: Sequence[Case], slots: int | None) -> None:
        """Refuse pools for all cases that do not fit.

        Raises:
            ConfigError: saying how many slots, sequences or tokens would fit.
        """
        whole = sizes_for(cases, self.serve, slots)
        if slots is not None and not self._fits(whole):
            wanted = _Asked(
                "slots",
                number_of(slots, "state slot"),
                "slot",
                slots,
                lambda number: sizes_for(cases, self.serve, number),
            )
            self._check(wanted, whole)
        largest = max(cases, key=lambda case: self._bytes(sizes_for([case], self.serve, None)))
        self._check(self._less_of(largest), whole)

    def _less_of(self, case: Case) -> _Asked:
        """A case with fewer sequences, or with a shorter prompt."""
        if case.num_sequences > 1:
            return _Asked(
                KEYS.get(case.mode, "max_width"),
                case.name,
                "sequence",
                case.num_sequences,
                lambda number: self._sizes_of(
                    replace(case, prompts=case.prompts[:number], widths=case.widths[:number])
                ),
            )
        prompt = case.prompts[0]
        return _Asked(
            KEYS.get(case.mode, "steps"),
            case.name if case.mode in KEYS else case.full_name,
            "prompt token",
            len(prompt),
            lambda number: self._sizes_of(
                replace(case, prompts=(prompt[:number],), restored=min(case.restored, number))
            ),
        )

    def _sizes_of(self, case: Case) -> PoolSizes:
        return sizes_for([case], self.serve, None)

    def _check(self, asked: _Asked, whole: PoolSizes) -> None:
        if self._fits(whole):
            return
        fitting = self._most(asked)
        if fitting == 0:  # the model itself is too large, or its longest sequence
            check_room(self.checkpoint, self.circuit, self.sets, asked.sizes(1))
            return
        raise ConfigError(
            f"{asked.key}: {asked.what} and the weights need {gib(self._bytes(whole))}, and "
            f"{gib(self.num_bytes)} {self.said}; about {number_of(fitting, asked.noun)} would fit"
        )

    def _most(self, asked: _Asked) -> int:
        """The most that fits, by bisection: pools grow with what is asked for."""
        low, high = 0, asked.number
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(asked.sizes(middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, sizes: PoolSizes) -> bool:
        return self._bytes(sizes) <= self.num_bytes

    def _bytes(self, sizes: PoolSizes) -> int:
        return needed_bytes(self.checkpoint, self.circuit, self.sets, sizes)
