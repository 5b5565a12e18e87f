"""A whole diff of a small model in this process, with faults planted in kernels or in the engine.

A fault wraps a kernel: `fault(kernel)` is called with the kernel's arguments when a step is bound
and gives what is launched instead. What compares and judges is never touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from metpipe.diff.comparison import Comparison
from metpipe.diff.records import Control
from metpipe.diff.verdict import Evidence
from metpipe.engine.forward import Forward
from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.pipeline import LineBoard, Pipeline, Store
from metpipe.stages.live import Live
from metpipe.stages.plan import plan
from metpipe.stages.records import restore
from tests.engine.opened import CONFIG
from tests.runs import composed

__all__ = [
    "Arguments",
    "Fault",
    "Kernel",
    "Said",
    "after",
    "diff",
    "flip",
    "forward_that_runs",
    "in_variant",
    "rebound",
]

Arguments = dict[str, Any]
Kernel = Callable[..., Callable[[], None]]
Fault = Callable[[Kernel], Kernel]

SMALL = {"name": "small", "config": CONFIG}
RUN = ("model=tiny_dense", "pipeline=diff", "variant=circuit", "steps=4", "prompts=1")


@dataclass(frozen=True, slots=True)
class Said:
    """What a diff said in the end."""

    outcome: str
    reasons: list[str]
    evidence: Evidence
    localized: list[dict[str, Any]]

    @property
    def reason(self) -> str:
        """The only reason."""
        (reason,) = self.reasons
        return reason

    def case(self, name: str, variant: str = "circuit") -> Comparison:
        """The comparison of one case."""
        return next(
            case.comparison
            for case in self.evidence.cases
            if (case.name, case.comparison.variant) == (name, variant)
        )

    def control(self, part: str, variant: str = "circuit") -> Control:
        """The only control of a variant whose name has this part."""
        (found,) = [
            control
            for control in self.evidence.controls
            if control.variant == variant and part in control.name
        ]
        return found


@dataclass(frozen=True, slots=True)
class _Planted(KernelSets):
    """The built-in set, of which variants (and neither legacy nor reference rules) have faults."""

    faults: Mapping[str, Fault] = field(default_factory=dict)

    def functions_for(self, *, overlay: bool) -> Mapping[str, Callable[..., Any]]:
        functions = self.builtin.functions
        return _wrapped(functions, self.faults) if overlay else functions


def diff(
    folder: Path,
    *overrides: str,
    variant: Mapping[str, Fault] | None = None,
    everywhere: Mapping[str, Fault] | None = None,
    model: Mapping[str, Any] = SMALL,
) -> Said:
    """Run a diff with kernels at fault, by name: in the variant `circuit`, or in every forward.

    `model`: what differs from the section of the default model.
    """
    run = composed(*RUN, *overrides)
    section = run.model.model_copy(update=model)
    run = run.model_copy(update={"model": section, "kernels": "planted"})
    live = Live(run, _sets(variant or {}, everywhere or {}))
    pipeline = Pipeline(plan(run), facts={})
    store = Store(folder)
    for event in pipeline.run(store, LineBoard(Console(quiet=True)), live=live):
        if event.error is not None:
            raise event.error
    record = pipeline.result(store, "compare")
    return Said(
        record["outcome"],
        record["reasons"],
        restore(Evidence, record["evidence"]),
        pipeline.result(store, "localize")["localized"],
    )


def _sets(variant: Mapping[str, Fault], everywhere: Mapping[str, Fault]) -> KernelSets:
    """Launched one by one, so that anything that can be called is a launch."""
    sets = open_kernel_sets("cpu", None)
    functions = {k: v for k, v in sets.builtin.functions.items() if k != "team.together"}
    builtin = dataclasses.replace(sets.builtin, functions=_wrapped(functions, everywhere))
    return _Planted(builtin, sets.rules, faults=variant)


def _wrapped(
    functions: Mapping[str, Callable[..., Any]], faults: Mapping[str, Fault]
) -> dict[str, Callable[..., Any]]:
    return {**functions, **{name: fault(functions[name]) for name, fault in faults.items()}}


def after(act: Callable[[int, Arguments], object]) -> Fault:
    """`act(number, arguments)` after each launch of a kernel, numbered over all forwards."""
    count = 0

    def wrap(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            launch = kernel(**arguments)

            def run() -> None:
                nonlocal count
                launch()
                act(count, arguments)
                count += 1

            return run

        return bind

    return wrap


def rebound(change: Callable[[Arguments], Arguments | None]) -> Fault:
    """A kernel bound to other arguments, made anew before each launch; None: its own."""

    def wrap(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            own = kernel(**arguments)

            def run() -> None:
                changed = change(arguments)
                launch = own if changed is None else kernel(**{**arguments, **changed})
                launch()

            return run

        return bind

    return wrap


def in_variant(monkeypatch: Any, method: str, fault: Callable[..., Any]) -> None:
    """A method of Forward replaced, for the circuit alone, by `fault(own, forward, ...)`."""
    own = getattr(Forward, method)

    def planted(forward: Forward, *arguments: Any, **named: Any) -> Any:
        if forward.kind == "legacy":
            return own(forward, *arguments, **named)
        return fault(own, forward, *arguments, **named)

    monkeypatch.setattr(Forward, method, planted)


def forward_that_runs(monkeypatch: Any) -> Callable[[], str]:
    """Says which kind of forward was made last, for faults outside of any forward."""
    made = ["legacy"]
    own = Model.forward

    def forward(model: Model, select: ForwardSelect) -> Forward:
        made[0] = select.forward
        return own(model, select)

    monkeypatch.setattr(Model, "forward", forward)
    return lambda: made[0]


def flip(tensor: torch.Tensor) -> None:
    """Flip the highest mantissa bit of the first 16 elements: enough to reach the logits."""
    tensor.view(-1).view(torch.int16)[:16] ^= 0x40
