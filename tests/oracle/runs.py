"""The two stages that the oracle's tests carry out: the reference, then the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from metpipe.engine.opening import KernelSets, open_kernel_sets
from metpipe.pipeline import StageContext
from metpipe.pipeline.progress import Silent
from metpipe.pipeline.store import RESULT, write_json
from metpipe.report.diff_section import OracleSection
from metpipe.stages.live import Live
from metpipe.stages.oracle import run_oracle
from metpipe.stages.reference import run_reference
from tests.runs import composed

__all__ = ["Decoded", "decode", "decode_model"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A run whose reference is done."""

    live: Live
    reference: Path

    def oracle(self) -> OracleSection:
        """What the oracle says of it; its scratch files are gone afterwards."""
        out = self.reference.parent / "oracle"
        out.mkdir(exist_ok=True)
        context = StageContext(out, {}, {"reference": self.reference}, Silent(), self.live)
        record = run_oracle(context)
        assert not list(out.iterdir())
        return OracleSection.model_validate(record["oracle"])


def decode_model(checkpoint: Path, folder: Path, *overrides: str) -> Decoded:
    """Decode a checkpoint's reference into `folder`."""
    return decode(live_of(f"model.checkpoint={checkpoint}", *overrides), folder)


def live_of(*overrides: str) -> Live:
    """The live objects of a command line: two short prompts unless it says otherwise."""
    run = composed("pipeline=diff", "variant=none", "steps=8", "prompts=2", *overrides)
    return Live(run, _kernel_sets())


def decode(live: Live, folder: Path) -> Decoded:
    """Run the reference's stage."""
    out = folder / "reference"
    out.mkdir()
    write_json(out / RESULT, run_reference(StageContext(out, {}, {}, Silent(), live)))
    return Decoded(live, out)


@cache
def _kernel_sets() -> KernelSets:
    return open_kernel_sets("cpu", None)
