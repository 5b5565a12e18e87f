"""One rule against the chain it replaces, on awkward shapes and adversarial values.

Nothing here judges: a `Trial` holds both sides' bytes, and what was written where none may be.
"""

from __future__ import annotations

from metpipe.engine.microtest.bench import Bench
from metpipe.engine.microtest.candidate import Candidate, candidate_of
from metpipe.engine.microtest.configs import AWKWARD, at_realistic_size
from metpipe.engine.microtest.places import Place, find_places, refuse_nowhere
from metpipe.engine.microtest.timing import Times, time_both
from metpipe.engine.microtest.trial import Pair, Trial
from metpipe.engine.microtest.values import KINDS

__all__ = [
    "AWKWARD",
    "KINDS",
    "Bench",
    "Candidate",
    "Pair",
    "Place",
    "Times",
    "Trial",
    "at_realistic_size",
    "candidate_of",
    "find_places",
    "refuse_nowhere",
    "time_both",
]
