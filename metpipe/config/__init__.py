"""The only view of a composed config: frozen, checked, with errors that name their origin."""

from __future__ import annotations

from metpipe.config.explain import Provenance, nearest_key, validate, with_source
from metpipe.config.modes import KEYS_OF_MODES, MODES, modes_of, reads_prompts
from metpipe.config.rules import NO_GRAPHS, WHAT_IFS
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
    "reads_prompts",
    "validate",
    "with_source",
]
