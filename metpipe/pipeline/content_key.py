"""The key under which a stage's result is kept: equal keys, equal result. If in doubt, a miss."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from metpipe.pipeline.graph import PlanError, Stage

__all__ = ["code_digest", "keys"]

PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def code_digest(folder: Path = PACKAGE, pattern: str = "*.py") -> str:
    """SHA-256 over a folder's sources (the package's Python files): their paths and their text."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def keys(
    stages: Sequence[Stage], order: Sequence[str], facts: Mapping[str, object]
) -> dict[str, str]:
    """Stage name -> key, over its name, code, parameters, its inputs' keys and the run's facts.

    The name is part of it, so that a repeat of the same work with the same parameters is never
    served from the first one's result. `facts` are what no parameter says: digests of kernels and
    tables, the machine, library versions.
    """
    by_name = {stage.name: stage for stage in stages}
    found: dict[str, str] = {}
    for name in order:
        stage = by_name[name]
        found[name] = _key(stage, [found[need] for need in stage.needs], facts)
    return found


def _key(stage: Stage, inputs: Sequence[str], facts: Mapping[str, object]) -> str:
    work = f"{stage.work.__module__}.{getattr(stage.work, '__qualname__', repr(stage.work))}"
    content = [stage.name, work, code_digest(), dict(stage.params), list(inputs), dict(facts)]
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"stage {stage.name!r}: params and facts must be JSON: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]
