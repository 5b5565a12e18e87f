"""The only view of a composed config: frozen, checked, with errors that name their origin."""

from __future__ import annotations

from metpipe.config.explain import Provenance, nearest_key, validate, with_source
from metpipe.config.rules import KEYS_OF_MODES, MODES, NO_GRAPHS, WHAT_IFS, modes_of
from metpipe.config.run import Hardware, Model, Package, Run, Without
from metpipe.config.serve import Serve
from metpipe.config.variant import Variant

__all__ = [
    "KEYS_OF_MODES",
    "MODES",
    "NO_GRAPHS",
    "WHAT_IFS",
    "Hardware",
    "Model",
    "Package",
    "Provenance",
    "Run",
    "Serve",
    "Variant",
    "Without",
    "modes_of",
    "nearest_key",
    "validate",
    "with_source",
]
