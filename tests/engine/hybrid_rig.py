"""A hybrid's hand-written forward and its circuit, driven without the engine around them.

Shapes: R rows, S head rows, E elements of a state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metpipe.circuit import Select, Situation, edge_rows, fuse, layout
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.kernel_arguments import ArgumentSources
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.legacy.hybrid import HybridLegacy, HybridShape
from metpipe.engine.opening import circuit_of
from metpipe.engine.program import Program, arena_views, compile_program
from metpipe.engine.rope_tables import rope_spec, rope_tables
from metpipe.engine.weights import load_weights

__all__ = ["Rig", "Tenant"]

BLOCK, BLOCKS, SLOTS, SNAPSHOTS, MAX_ROWS, SEQUENCES, POSITIONS = 8, 40, 4, 6, 48, 4, 200


@dataclass(slots=True)
class Tenant:
    """A sequence: its slot, its blocks, its length."""

    slot: int
    blocks: list[int]
    length: int = 0


class Rig:
    """Weights, pools and step buffers of one checkpoint; every pool starts as NaN."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = open_checkpoint(ModelSource(name="rig", checkpoint=str(folder)))
        self.config = self.checkpoint.config
        self.circuit = circuit_of(self.config, "the rig")
        self.sets = open_kernel_sets("cpu", None)
        self.allocator = Allocator(torch.device("cpu"))
        self.weights = load_weights(self.circuit, self.checkpoint, self.allocator)
        self.hidden = _nan(SEQUENCES, self.circuit.dims["hidden"], torch.bfloat16)
        self.states, self.snapshots = {}, {}
        for state in self.circuit.states.values():
            if state.kind == "paged_kv":
                self.states[state.id] = _nan(BLOCKS * BLOCK, state.elements, torch.bfloat16)
            else:
                self.states[state.id] = _nan(SLOTS + 1, state.elements, torch.float32)
                self.snapshots[state.id] = _nan(SNAPSHOTS, state.elements, torch.float32)
        self.step: dict[str, Any] = {
            name: torch.zeros(MAX_ROWS, dtype=torch.int32)
            for name in ("token_ids", "positions", "slots", "snapshots")
        }
        self.step["block_table"] = torch.zeros(MAX_ROWS, BLOCKS, dtype=torch.int32)
        self.step["block_size"] = BLOCK
        self.shape = HybridShape.from_config(self.config)
        self.legacy = HybridLegacy(
            shape=self.shape,
            kernels=self.sets.builtin.functions,
            weights=self.weights,
            states=self.states,
            snapshots=self.snapshots,
            step=self.step,
            rope=self._tables(self.shape.rope(self.config)),
            allocator=self.allocator,
            max_rows=MAX_ROWS,
            max_head_rows=MAX_ROWS,
            drafter_hidden=self.hidden if self.shape.has_draft else None,
        )

    def open(self, slot: int, blocks: Sequence[int]) -> Tenant:
        """A sequence of no tokens: its recurrent states are zero."""
        for state in self.snapshots:
            self.states[state][slot] = 0.0
        return Tenant(slot, list(blocks))

    def fill(
        self, runs: Sequence[tuple[Tenant, Sequence[int]]], snapshots: Sequence[int] = ()
    ) -> int:
        """Make the leading rows the next tokens of these sequences; the rows so filled."""
        row = 0
        for tenant, tokens in runs:
            for offset, token in enumerate(tokens):
                self.step["token_ids"][row] = token
                self.step["positions"][row] = tenant.length + offset
                self.step["slots"][row] = tenant.slot
                self.step["block_table"][row, : len(tenant.blocks)] = torch.tensor(tenant.blocks)
                row += 1
            tenant.length += len(tokens)
        self.step["snapshots"][:row] = -1
        self.step["snapshots"][: len(snapshots)] = torch.tensor(snapshots, dtype=torch.int32)
        return row

    def legacy_step(
        self, mode: str, runs: Sequence[tuple[Tenant, Sequence[int]]], snapshots: Sequence[int] = ()
    ) -> dict[str, torch.Tensor]:
        """Run the hand-written step; copies of logits, tokens and hidden stream."""
        step = self.legacy.bind(mode, self.fill(runs, snapshots))
        for launch in step.launches:
            launch()
        assert step.hidden_RD is not None
        outputs = {"logits": step.logits_SV, "tokens": step.tokens_S1, "hidden": step.hidden_RD}
        return {name: tensor.clone() for name, tensor in outputs.items()}

    def circuit_step(
        self, mode: str, runs: Sequence[tuple[Tenant, Sequence[int]]], snapshots: Sequence[int] = ()
    ) -> dict[str, torch.Tensor]:
        """As `legacy_step`, by the circuit's program of reference rules."""
        rows = self.fill(runs, snapshots)
        program, views = self.program(mode, rows)
        for launch in program.launches:
            launch()
        found = {name: view.clone() for name, view in program.outputs.items()}
        return {"hidden": views[self.drafts_read].clone(), **found}

    @property
    def drafts_read(self) -> str:
        """The edge that the draft head starts from: the target's last stream."""
        blocks = self.circuit.blocks
        return next(str(block.stream_in) for block in blocks if block.section == "draft")

    def program(self, mode: str, rows: int) -> tuple[Program, dict[str, torch.Tensor]]:
        """One kernel per op, and every edge that it stores."""
        builtin = self.sets.builtin
        situation = Situation(
            mode=mode,
            rows=rows,
            kernels=frozenset(builtin.functions),
            capabilities=builtin.capabilities,
            settings=builtin.settings,
            select=Select.reference(),
        )
        plan = fuse(self.circuit, self.sets.rules, situation)
        places = layout(plan, rows)
        arena = torch.full((places.total,), 255, dtype=torch.uint8)
        views = arena_views(plan, places, rows, arena)
        step = {
            name: value if name == "block_size" else value[:rows]
            for name, value in self.step.items()
        }
        if mode == "draft":
            views[self.drafts_read] = self.hidden[:rows]
        sources = ArgumentSources(
            circuit=self.circuit,
            weights=self.weights,
            edges=views,
            states=self.states,
            snapshots=self.snapshots,
            rope=lambda node: self._tables(
                rope_spec(json.loads(node.params["rope"]), int(node.params["rotary_dim"]))
            ),
            step=step,
            rows_of=lambda edge: edge_rows(plan, self.circuit.edges[edge], rows),
        )
        return compile_program(plan, rows, sources, builtin.functions), views

    def state_of(self, tenant: Tenant) -> dict[str, bytes]:
        """The bytes of every state that the sequence owns."""
        owned = {}
        for name, pool in self.states.items():
            if name in self.snapshots:
                owned[name] = pool[tenant.slot].numpy().tobytes()
                continue
            rows = [
                tenant.blocks[token // BLOCK] * BLOCK + token % BLOCK
                for token in range(tenant.length)
            ]
            owned[name] = pool[rows].view(torch.int16).numpy().tobytes()
        return owned

    def _tables(self, spec: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rope_tables(spec, POSITIONS)
        return torch.from_numpy(cos), torch.from_numpy(sin)


def _nan(rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((rows, dim), float("nan"), dtype=dtype)
