"""The two ways to bind a step: the hand-written forward, and a plan fused from the circuit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from metpipe.circuit import (
    Plan,
    RuleSet,
    Situation,
    Uncovered,
    edge_rows,
    fuse,
    layout,
    row_buckets,
)
from metpipe.engine.disclosure import PlanFacts
from metpipe.engine.forward import BoundStep
from metpipe.engine.kernel_arguments import ArgumentSources
from metpipe.engine.kernel_set import KernelSet
from metpipe.engine.legacy.dense import DenseLegacy, DenseShape
from metpipe.engine.legacy.forward import Kernels, LegacyForward
from metpipe.engine.legacy.hybrid import HybridLegacy
from metpipe.engine.legacy.hybrid_shape import HybridShape
from metpipe.engine.program import Launch, Program, arena_views, compile_program
from metpipe.engine.selection import ForwardSelect
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    from metpipe.engine.model import Model

__all__ = ["LEGACY_FAMILIES", "CircuitRunner", "LegacyRunner", "check_select"]

Step = Mapping[str, torch.Tensor | int]


def _dense(model: Model, kernels: Kernels, step: Step) -> LegacyForward:
    shape = DenseShape.from_config(model.config)
    return DenseLegacy(
        shape=shape,
        kernels=kernels,
        weights=model.weights,
        states=model.states,
        step=step,
        rope=model.rope(shape.rope(model.config)),
        allocator=model.allocator,
        max_rows=model.sizes.max_rows,
        max_head_rows=model.sizes.max_head_rows,
    )


def _hybrid(model: Model, kernels: Kernels, step: Step) -> LegacyForward:
    shape = HybridShape.from_config(model.config)
    return HybridLegacy(
        shape=shape,
        kernels=kernels,
        weights=model.weights,
        states=model.states,
        snapshots=model.snapshots,
        step=step,
        rope=model.rope(shape.rope(model.config)),
        allocator=model.allocator,
        max_rows=model.sizes.max_rows,
        max_head_rows=model.sizes.max_head_rows,
        drafter_hidden=model.drafter_hidden_SD,
    )


LEGACY_FAMILIES: Mapping[str, Callable[[Model, Kernels, Step], LegacyForward]] = {
    "dense_gqa": _dense,
    "qwen3_5": _hybrid,
    "qwen3_6_moe": _hybrid,
}
"""circuit arch -> makes its hand-written forward"""


class LegacyRunner:
    """Binds the family's hand-written forward, always on the built-in kernel set."""

    def __init__(self, model: Model) -> None:
        self._kernels = model.sets.builtin
        self._launched: list[str] = []
        kernels = _Recording(self._kernels.functions, self._launched)
        self._legacy = LEGACY_FAMILIES[model.circuit.arch](model, kernels, step_sources(model))

    def bind(self, mode: str, rows: int) -> BoundStep:
        """The hand-written launches for `rows` rows; only prefill and draft are of their own."""
        self._launched.clear()
        step = self._legacy.bind(mode, rows)
        kernels = tuple(self._launched)
        run = in_one_launch(self._kernels, step.launches)
        return BoundStep(run, step.logits_SV, step.tokens_S1, step.hidden_RD, kernels, plan=None)

    def kernel_digest(self, kernel: str) -> str:
        """The built-in set's digest of a kernel."""
        return self._kernels.kernel_digest(kernel)

    def close(self) -> None:
        """Give the hand-written forward's buffers back."""
        self._legacy.close()


class CircuitRunner:
    """Fuses plans for the rows asked for, lays them out in one arena, binds their launches."""

    def __init__(self, model: Model, select: ForwardSelect) -> None:
        self._model = model
        self._select = select
        self._rules = model.sets.rules_for(overlay=select.overlay)
        self._functions = model.sets.functions_for(overlay=select.overlay)
        check_select(self._rules, select)
        self._plans: dict[tuple[str, int], Plan] = {}
        self._arena = model.allocator.take(
            "arena", select.name, (self._arena_bytes(),), torch.uint8
        )

    def bind(self, mode: str, rows: int) -> BoundStep:
        """The program of the plan that covers (mode, rows)."""
        program, views = self.program(mode, rows)
        run = in_one_launch(self._model.sets.builtin, program.launches)
        outputs = program.outputs
        hidden_RD = outputs.get("hidden", views.get(self._drafts_read or ""))
        return BoundStep(
            run,
            outputs["logits"],
            outputs["tokens"],
            hidden_RD,
            program.kernels,
            _facts(program.plan),
        )

    def program(self, mode: str, rows: int) -> tuple[Program, Mapping[str, torch.Tensor]]:
        """The bound program, and its edges in the arena: edge id -> [rows, dim]."""
        plan = self.plan(mode, rows)
        views = arena_views(plan, layout(plan, rows), rows, self._arena)
        model = self._model
        if mode == "draft":
            assert self._drafts_read is not None, "the circuit has a draft section"
            assert model.drafter_hidden_SD is not None, "the pools are sized for drafts"
            views[self._drafts_read] = model.drafter_hidden_SD[:rows]
        sources = ArgumentSources(
            circuit=model.circuit,
            weights=model.weights,
            edges=views,
            states=model.states,
            snapshots=model.snapshots,
            rope=model.rope_of,
            step=step_sources(model, rows),
            rows_of=lambda edge_id: edge_rows(plan, model.circuit.edges[edge_id], rows),
        )
        return compile_program(plan, rows, sources, self._functions), views

    def plan(self, mode: str, rows: int) -> Plan:
        """The plan of the row bucket that holds `rows`; exact for every row count inside."""
        buckets = row_buckets(self._rules, mode, self._model.sizes.max_rows)
        key = (mode, next(bucket.high for bucket in buckets if rows <= bucket.high))
        if key not in self._plans:
            situation = Situation(
                mode=mode,
                rows=key[1],
                kernels=frozenset(self._functions),
                capabilities=self._model.sets.builtin.capabilities,
                settings=self._model.sets.builtin.settings,
                levers=self._select.levers,
                select=self._select.select,
            )
            self._plans[key] = self._fused(situation)
        return self._plans[key]

    def _fused(self, situation: Situation) -> Plan:
        """The plan; a node that no rule takes is the variant's fault if it chose its rules."""
        try:
            return fuse(self._model.circuit, self._rules, situation)
        except Uncovered as error:
            if not situation.select.ids:
                raise
            raise Uncovered(f"variants.{self._select.name}.rules: {error}") from None

    def kernel_digest(self, kernel: str) -> str:
        """The digest of a kernel of the overlay or of the built-in set."""
        return self._model.sets.kernel_digest(kernel)

    def close(self) -> None:
        """Give the arena back."""
        self._model.allocator.free(self._arena)

    @property
    def _drafts_read(self) -> str | None:
        """The main model's edge that the draft head starts from."""
        blocks = self._model.circuit.blocks
        return next((block.stream_in for block in blocks if block.section == "draft"), None)

    def _arena_bytes(self) -> int:
        """The widest program's arena, over the modes that will run."""
        runs = self._model.sizes.runs
        return max(layout(self.plan(mode, rows), rows).total for mode, rows in runs)


def check_select(rules: RuleSet, select: ForwardSelect) -> None:
    """Refuse a forward that asks for a rule or a lever which the rule set does not have.

    Raises:
        ConfigError: naming the variant's key and what there is.
    """
    if unknown := select.select.ids - frozenset(rules.rules):
        raise ConfigError(
            f"variants.{select.name}.rules: no rule of {rules.source} is named {min(unknown)!r}; "
            f"its rules are {', '.join(sorted(rules.rules))}"
        )
    if unknown := select.levers - rules.levers:
        raise ConfigError(
            f"variants.{select.name}.levers: no rule of {rules.source} has the lever "
            f"{min(unknown)!r}; those with one: {', '.join(sorted(rules.levers)) or 'none'}"
        )


def in_one_launch(kernels: KernelSet, launches: tuple[Launch, ...]) -> Launch:
    """The step as one call: by the set's own `team.together` if it has one, else one by one."""
    together = kernels.functions.get("team.together")
    if together is not None:
        return cast("Launch", together(launches))

    def run() -> None:
        for launch in launches:
            launch()

    return run


def _facts(plan: Plan) -> PlanFacts:
    identical = [g for g in plan.groups if g.rule.numerics.kind == "bit_identical"]
    return PlanFacts(
        digest=plan.digest(),
        rules=tuple(sorted(plan.rules_used())),
        groups=len(plan.groups),
        bit_identical=len(identical),
    )


@dataclass(slots=True)
class _Recording(Mapping[str, Callable[..., Launch]]):
    """The kernels, noting which were bound."""

    kernels: Mapping[str, Callable[..., Launch]]
    bound: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Callable[..., Launch]:
        self.bound.append(name)
        return self.kernels[name]

    def __iter__(self) -> object:  # type: ignore[override]
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)


def step_sources(model: Model, rows: int | None = None) -> dict[str, torch.Tensor | int]:
    """What `step.NAME` may name; with `rows`, the leading rows of each buffer."""
    step = model.step
    return {
        "token_ids": step.token_ids_R[:rows],
        "positions": step.positions_R[:rows],
        "slots": step.slots_R[:rows],
        "snapshots": step.snapshots_R[:rows],
        "block_table": step.block_table_RB[:rows],
        "block_size": model.sizes.block_size,
    }
