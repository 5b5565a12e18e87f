"""How many drafts a verify has when so many sequences are active (section 10)."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.errors import ConfigError

__all__ = ["LADDER", "Rung", "drafts_at", "parse_ladder"]


@dataclass(frozen=True, slots=True)
class Rung:
    """Up to `sequences` active ones, each may have `drafts`."""

    sequences: int
    drafts: int


def parse_ladder(text: str) -> tuple[Rung, ...]:
    """Read `4:3,8:3,16:1,32:1`: sequences and drafts, sequences rising.

    Raises:
        ConfigError: any rung is not of that form; none of the others counts then.
    """
    rungs = []
    for part in text.split(","):
        sequences, colon, drafts = part.strip().partition(":")
        if not (colon and sequences.isdecimal() and drafts.isdecimal() and int(sequences)):
            raise ConfigError(f"{text!r} is no ladder of drafts: {part!r} is not SEQUENCES:DRAFTS")
        rungs.append(Rung(int(sequences), int(drafts)))
    if [rung.sequences for rung in rungs] != sorted({rung.sequences for rung in rungs}):
        raise ConfigError(f"{text!r} is no ladder of drafts: its sequences do not rise")
    return tuple(rungs)


LADDER = parse_ladder("4:3,8:3,16:1,32:1")


def drafts_at(active: int, num_drafts: int, ladder: tuple[Rung, ...] = LADDER) -> int:
    """Drafts of each of `active` sequences: the first rung that holds them, past the end the last.

    Between 1 and `num_drafts`; 0 when nothing is drafted.
    """
    if num_drafts == 0:
        return 0
    rung = next((rung for rung in ladder if active <= rung.sequences), ladder[-1])
    return min(max(rung.drafts, 1), num_drafts)
