"""A dense model of one layer, straight from kernels: what a promise is tried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.kernels.cpu.values import make

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB = 96, 3, 1, 32, 100, 131
KV_DIM = KV_HEADS * HEAD_DIM
BLOCK, BLOCKS = 16, 40
EPS = 1e-6

Functions = Mapping[str, Any]
Tables = Sequence[Sequence[int]]
Mixer = Callable[[torch.Tensor, dict[str, Any], int], torch.Tensor]


class TinyModel:
    """Weights, and pools in which every sequence owns the blocks that its table names."""

    shapes: Mapping[str, tuple[int, ...]] = {
        "table": (VOCAB, HIDDEN), "q": (HEADS * HEAD_DIM, HIDDEN), "k": (KV_DIM, HIDDEN),
        "v": (KV_DIM, HIDDEN), "o": (HIDDEN, HEADS * HEAD_DIM), "gate_up": (2 * INTER, HIDDEN),
        "down": (HIDDEN, INTER), "norm": (HIDDEN,),
    }  # fmt: skip

    def __init__(self, functions: Functions) -> None:
        self._call = functions
        self.weights = {
            name: make("normal", seed, *shape) * shape[-1] ** -0.5
            for seed, (name, shape) in enumerate(self.shapes.items())
        }
        self.weights["norm"] = 1 + self.weights["norm"]
        angle = torch.arange(200)[:, None] * 10000.0 ** -(torch.arange(16) / 16)
        self._rope = {"cos": angle.cos(), "sin": angle.sin()}
        # What no sequence has written is NaN, so that reading it shows.
        pool = torch.full((BLOCKS * BLOCK, KV_DIM), float("nan"), dtype=torch.bfloat16)
        self.pools = {"k_pool": pool, "v_pool": pool.clone()}

    def step(self, tokens: Sequence[int], positions: Sequence[int], tables: Tables) -> torch.Tensor:
        """Logits [rows, VOCAB] of a step; row r is a token of the sequence that owns tables[r]."""
        rows = len(tokens)
        where = {
            "positions": torch.tensor(positions, dtype=torch.int32),
            "block_table": torch.tensor(tables, dtype=torch.int32),
            "block_size": BLOCK,
        }
        x = self._out(rows, HIDDEN)
        ids = torch.tensor(tokens, dtype=torch.int32)
        self._run("embed.embed", token_ids=ids, table=self.weights["table"], y=x)
        for mixer in self._mixers(tables, positions):
            x = self._add(x, mixer(self._norm(x), where, rows))
            x = self._add(x, self._feed_forward(self._norm(x), rows))
        return self._linear(self._norm(x), "table")

    def keep(self, row: int) -> None:
        """Of the last step, rows behind this one of its sequence never were.

        Nothing to do: the next step writes over their keys and values.
        """

    def _mixers(self, tables: Tables, positions: Sequence[int]) -> tuple[Mixer, ...]:
        return (self._attention,)

    def state(self, table: Sequence[int], count: int) -> tuple[int, ...]:
        """The digests of a sequence's k and v."""
        blocks = torch.tensor(table, dtype=torch.int32)
        rows = self._call["hash.hash128_rows"]
        k, v = (
            rows(pool=pool, block_table=blocks, count=count, block_size=BLOCK)
            for pool in self.pools.values()
        )
        return k, v

    def _attention(self, xn: torch.Tensor, where: dict[str, Any], rows: int) -> torch.Tensor:
        q, k, v = (self._linear(xn, name) for name in ("q", "k", "v"))
        rotated, a = self._out(*q.shape), self._out(*q.shape)
        self._run(
            "rope.rope_write", q=q, k=k, v=v, **self._rope, **where, **self.pools,
            q_out=rotated, head_dim=HEAD_DIM,
        )  # fmt: skip
        self._run(
            "attention.paged_attention", q=rotated, **where, **self.pools, y=a,
            head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5,
        )  # fmt: skip
        return self._linear(a, "o")

    def _feed_forward(self, xn: torch.Tensor, rows: int) -> torch.Tensor:
        act = self._out(rows, INTER)
        self._run("linear.gate_up_silu", x=xn, weight=self.weights["gate_up"], bias=None, y=act)
        return self._linear(act, "down")

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        y = self._out(*x.shape)
        self._run("norm.rms_norm", x=x, weight=self.weights["norm"], y=y, eps=EPS)
        return y

    def _add(self, stream: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        y = self._out(*stream.shape)
        self._run("residual.residual_add", stream=stream, delta=delta, y=y)
        return y

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = self._out(x.shape[0], self.weights[name].shape[0])
        self._run("linear.linear", x=x, weight=self.weights[name], bias=None, y=y)
        return y

    def _out(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=torch.bfloat16)

    def _run(self, kernel: str, **arguments: Any) -> None:
        self._call[kernel](**arguments)()
