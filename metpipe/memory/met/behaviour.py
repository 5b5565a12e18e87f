"""What met's kernel target says of a model: its defaults of serve flags (section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metpipe.circuit import Circuit

__all__ = ["Behaviour", "find_behaviour", "stated_outside"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One target. A count of 0 and an empty dtype are unset. `source` is the file it came from.

    It is for every model of this arch and these dims. `outside` maps the id of a published
    checkpoint to the bytes of it that no node binds, as measured on its files.
    """

    arch: str
    dims: Mapping[str, int]
    num_drafts: int
    mtp_max_seqs: int
    kv_dtype: str
    outside: Mapping[str, int]
    source: str

    def is_for(self, circuit: Circuit) -> bool:
        """Whether it speaks of this model."""
        return self.arch == circuit.arch and all(
            circuit.dims.get(name) == size for name, size in self.dims.items()
        )


def find_behaviour(behaviours: Sequence[Behaviour], circuit: Circuit) -> Behaviour | None:
    """The first that is for this model; None: the engine's own defaults hold."""
    return next((entry for entry in behaviours if entry.is_for(circuit)), None)


def stated_outside(behaviours: Sequence[Behaviour], checkpoint_id: str | None) -> int | None:
    """The outside bytes of a published checkpoint; None: nobody measured them."""
    known = {key: size for entry in behaviours for key, size in entry.outside.items()}
    return None if checkpoint_id is None else known.get(checkpoint_id)
