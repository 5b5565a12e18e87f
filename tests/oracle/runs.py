"""The two stages that the oracle's tests carry out: the reference, then the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.pipeline import StageContext
from metpipe.pipeline.progress import Silent
from metpipe.pipeline.store import RESULT, write_json
from metpipe.report.oracle_section import OracleSection
from metpipe.stages.live import Live
from metpipe.stages.plan import plan
from tests.runs import composed

__all__ = ["Decoded", "decode", "live_of"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A run whose reference is done."""

    live: Live
    reference: Path

    def oracle(self) -> OracleSection:
        """What the oracle says of it; its scratch files are gone afterwards."""
        out = self.reference.parent / "oracle"
        out.mkdir(exist_ok=True)
        record = _carry_out("oracle", out, self.live, {"reference": self.reference})
        assert not list(out.iterdir())
        return OracleSection.model_validate(record["oracle"])


def live_of(*overrides: str) -> Live:
    """The live objects of a command line: two short prompts unless it says otherwise."""
    defaults = ("pipeline=diff", "oracle=transformers", "variant=none", "steps=8", "prompts=2")
    return Live(composed(*defaults, *overrides), _kernel_sets())


def decode(live: Live, folder: Path) -> Decoded:
    """Run the reference's stage."""
    out = folder / "reference"
    out.mkdir()
    write_json(out / RESULT, _carry_out("reference", out, live, {}))
    return Decoded(live, out)


def _carry_out(name: str, out: Path, live: Live, inputs: Mapping[str, Path]) -> Any:
    """The work of a stage of the run's own plan."""
    stage = next(stage for stage in plan(live.run) if stage.name == name)
    return stage.work(StageContext(out, stage.params, inputs, Silent(), live))


@cache
def _kernel_sets() -> KernelSets:
    return open_kernel_sets("cpu", None)
