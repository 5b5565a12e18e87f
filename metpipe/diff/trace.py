"""The record of one run of one case: small, and enough to compare by digest or to be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Trace"]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run was fed, what it gave, and how long it took. Rows lie sequence by sequence."""

    prompts: tuple[tuple[int, ...], ...]
    """Of each sequence."""
    fed: tuple[tuple[int, ...], ...]
    """The tokens of each step, one for each of its rows; of a verify, the drafts too."""
    prefill_digests: tuple[str, ...]
    """Of each row before the first step."""
    step_digests: tuple[tuple[str, ...], ...]
    """Of each row of each step."""
    step_states: tuple[tuple[str, ...], ...]
    """After each step, hex over what each sequence wrote in it, and its recurrent state; behind it
    that of what the draft head wrote, where it runs."""
    state_digests: Mapping[str, str]
    """At the end, label -> hex; of the slots and blocks that the sequences own."""
    enqueue_ms: tuple[float, ...]
    """Host time of each step's call, milliseconds."""
    step_ms: tuple[float, ...]
    """The step and the wait for its logits, milliseconds."""
    accepted: tuple[tuple[int, ...], ...] = ()
    """Of each verify step, the drafts that each sequence accepted."""
    chosen: tuple[tuple[int, ...], ...] = ()
    """Greedy ids of the main model's rows: before the first step, then of each."""
    drafted: tuple[tuple[int, ...], ...] = ()
    """Ids that the draft head gave: before the first step, then after each."""
    draft_ms: tuple[float, ...] = ()
    """Time of the draft head behind each step, milliseconds; empty where it does not run."""
    following: tuple[int, ...] = ()
    """Of a verify, the token that each sequence would be fed next."""
    slots: tuple[int, ...] = ()
    """The state slot of each sequence."""
    computed: int = 0
    """Prompt tokens that the prefill computed; a restored prefix is not."""
    rank: int = 0

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("fed", "step_digests", "step_states", "enqueue_ms", "step_ms")
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a trace whose parts count other steps: {lengths}.")

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt of the only sequence."""
        (prompt,) = self.prompts
        return prompt

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens fed to the only sequence, a row a step."""
        return tuple(token for (token,) in self.fed)
