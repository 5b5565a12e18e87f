"""One thing that is run alike under every forward, as data."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit import padded_rows
from metpipe.diff.logits_file import Rows

__all__ = ["Case", "slots_of"]


def slots_of(count: int, *, fragmented: bool, held: int = 0) -> tuple[int, ...]:
    """The slots of sequences opened one after another; fragmented, with a gap in the middle."""
    return tuple(held + i + (fragmented and i >= count // 2) for i in range(count))


@dataclass(frozen=True, slots=True)
class Case:
    """What is decoded: prompts, steps, and how many rows a step has of each sequence."""

    mode: str
    name: str
    """What reports call it: `prompt 0`, `width 8`, `K=3`."""
    prompts: tuple[tuple[int, ...], ...]
    """One sequence each."""
    steps: int
    widths: tuple[int, ...] = ()
    """Rows K of each sequence in a verify step; empty: one row, plain decode."""
    num_drafts: int = 0
    """Drafts of the draft head after each step; 0: it does not run."""
    drafts_verified: bool = False
    """Whether the head's drafts are what is verified, or those of the greedy continuation."""
    fragmented: bool = False
    """A spare slot stays open in the middle of the sequences', and blocks are scattered."""
    held: int = 0
    """Sequences that hold slots before the case's: it lies behind them."""
    tenant: tuple[int, ...] = ()
    """A prompt that ran in the case's first slot, and left, before the case."""
    padded: bool = True
    """Whether a step's rows are filled up to the ladder's rung."""
    chunk: int | None = None
    """Tokens of a prefill pass; None: the whole prompt."""
    restored: int = 0
    """Leading tokens of the prompt whose state is restored from a record, not computed."""
    spill: int | None = None
    """The step before which the sequence is saved, closed and restored; None: never."""
    crossing: bool = False
    """With `spill`: what is restored is the reference's record."""

    @property
    def num_sequences(self) -> int:
        """Sequences that are open at once."""
        return len(self.prompts)

    @property
    def verify_rows(self) -> int:
        """Rows of the main model in a step."""
        return sum(self.widths) if self.widths else self.num_sequences

    @property
    def pads(self) -> bool:
        """Whether some step has rows of padding, which write to the dummy slot and block."""
        if padded_rows(self.num_sequences) == self.num_sequences:
            return False
        return self.num_drafts > 0 or (not self.widths and self.padded)

    @property
    def rows(self) -> Rows:
        """Rows of logits: before the first step, and in each; those of the draft head last."""
        drafted = self.num_drafts * self.num_sequences
        first = self.num_sequences * (2 if self.num_drafts else 1) + drafted
        return Rows(self.steps, first, self.verify_rows + drafted)

    @property
    def reserved(self) -> tuple[int, ...]:
        """Tokens that each sequence has room for: prompt, bootstrap, rows of each step.

        Of a mixed batch each has room for the deepest, as far as its greedy continuation goes.
        """
        width = max(self.widths, default=1)
        extra = 2 + self.num_drafts if self.widths else 0
        return tuple(len(prompt) + self.steps * width + extra for prompt in self.prompts)

    @property
    def full_name(self) -> str:
        """The name, with its mode where it is not plain decoding."""
        return self.name if self.mode == "single" else f"{self.mode}, {self.name}"

    def owner_of(self, row: int) -> int:
        """The sequence that a row of a step belongs to; of the draft head's rows too.

        Rows before the first step are one a sequence, and not asked for.
        """
        widths = self.widths or (1,) * self.num_sequences
        for sequence, width in enumerate(widths):
            if row < width:
                return sequence
            row -= width
        return row % self.num_sequences
