"""Values of a gated delta layer on odd sizes, and outputs of float32 between margins."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.kernels.cpu.values import MARGIN, make

GUARD_F32 = 0x7F812345  # a signalling NaN that no kernel makes: the canonical one is 0x7FC00000


@dataclass(frozen=True)
class Layer:
    """Head counts and dims of a layer; `slots` states, of which the last is the dummy one."""

    k_heads: int
    heads: int
    dk: int
    dv: int
    slots: int = 5
    kind: str = "normal"

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.dk + self.heads * self.dv

    @property
    def width(self) -> int:
        return self.channels + self.heads * self.dv

    def qkvz(self, rows: int, seed: int = 41) -> torch.Tensor:
        return make(self.kind, seed, rows, self.width)

    def conv(self) -> dict[str, torch.Tensor]:
        return {
            "taps": make("normal", 42, self.channels, 1, 4),
            "conv": make("normal", 43, self.slots, 4 * self.channels).float(),
        }

    def norm(self) -> dict[str, int | float]:
        return {"k_heads": self.k_heads, "k_dim": self.dk, "eps": 1e-6}

    def gates(self) -> dict[str, torch.Tensor]:
        return {"a_log": make("normal", 44, self.heads), "dt_bias": make("normal", 45, self.heads)}

    def qkv(self, rows: int) -> torch.Tensor:
        """float32, q and k about as long as they are after their norms."""
        x = make(self.kind, 46, rows, self.channels).float()
        x[:, : 2 * self.k_heads * self.dk] *= self.dk**-0.5
        return x * (1 + 2.0**-11)  # not a bf16 value

    def recurrence(self, rows: int) -> dict[str, torch.Tensor | float]:
        seed = torch.Generator().manual_seed(47)
        return {
            "qkv": self.qkv(rows),
            "decay": -torch.rand(rows, self.heads, generator=seed) * 2,
            "beta": torch.rand(rows, self.heads, generator=seed),
            "k_heads": self.k_heads,
            "k_dim": self.dk,
            "scale": self.dk**-0.5,
        }

    def gated(self, rows: int) -> dict[str, torch.Tensor | float]:
        """Weight and gate of the norm behind the recurrence."""
        return {
            "weight": make("normal", 49, self.dv),
            "gate": self.qkvz(rows),
            "gate_offset": self.channels,
            "eps": 1e-6,
        }

    def states(self) -> torch.Tensor:
        size = self.heads * self.dk * self.dv
        return make("normal", 48, self.slots, size).float() * (1 + 2.0**-12)


LAYERS = (
    Layer(k_heads=2, heads=4, dk=32, dv=64),
    Layer(k_heads=1, heads=3, dk=7, dv=19),
    Layer(k_heads=3, heads=3, dk=67, dv=100),
    Layer(k_heads=1, heads=2, dk=1, dv=1),
    Layer(k_heads=2, heads=2, dk=40, dv=161),
)


def slots_of(rows: int) -> torch.Tensor:
    """Slots in which rows of one sequence stand side by side and apart."""
    return torch.tensor([(row * row // 3) % 4 for row in range(rows)], dtype=torch.int32)


def no_steps(state: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
    """What a plain decode binds: no row leaves its state behind, and there is no room for one."""
    return {
        "steps": torch.empty(0, state.shape[1]),
        "step_rows": torch.full((rows,), -1, dtype=torch.int32),
    }


def scattered_steps(state: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
    """Rows that leave their states in the opposite order, others that name no row of `steps`."""
    at = torch.arange(rows, 0, -1, dtype=torch.int32)
    at[2::3] = -1
    at[3::5] = rows + 2
    marks = torch.full((rows + 2, state.shape[1]), GUARD_F32, dtype=torch.int32)
    return {"steps": marks.view(torch.float32), "step_rows": at}


def untouched(steps: torch.Tensor) -> list[bool]:
    """Which rows still hold nothing but marks."""
    return (bits32(steps) == GUARD_F32).all(-1).tolist()


def bits32(tensor: torch.Tensor) -> torch.Tensor:
    """The raw bits of a float32 tensor."""
    return tensor.contiguous().view(torch.int32)


def same_bits32(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float32 tensors are equal bit for bit."""
    return a.shape == b.shape and torch.equal(bits32(a), bits32(b))


class guarded_f32:
    """As `guarded`, of float32: no element unwritten, nothing written beside it."""

    def __init__(self, *shape: int) -> None:
        size = int(torch.tensor(shape).prod())
        filled = torch.full((size + 2 * MARGIN,), GUARD_F32, dtype=torch.int32)
        self._whole = filled.view(torch.float32)
        self.tensor = self._whole[MARGIN : MARGIN + size].view(shape)

    def check(self) -> torch.Tensor:
        """The tensor, once the margins are found whole and no element unwritten."""
        raw = self._whole.view(torch.int32)
        assert bool((raw[:MARGIN] == GUARD_F32).all()), "wrote before its output"
        assert bool((raw[-MARGIN:] == GUARD_F32).all()), "wrote past its output"
        assert not bool((bits32(self.tensor) == GUARD_F32).any()), "left a hole in its output"
        return self.tensor


@dataclass(frozen=True)
class Experts:
    """A feed-forward of routed experts and a shared one."""

    hidden: int
    inter: int
    shared_inter: int
    experts: int
    count: int
    kind: str = "normal"

    def x(self, rows: int) -> torch.Tensor:
        return make(self.kind, 61, rows, self.hidden)

    def chosen(self, rows: int) -> dict[str, torch.Tensor]:
        """ids, each choice of a row another expert, and their weights."""
        seed = torch.Generator().manual_seed(62)
        order = torch.rand(rows, self.experts, generator=seed).argsort(-1)[:, : self.count]
        weights = torch.rand(rows, self.count, generator=seed) + 0.1
        return {"ids": order.int().contiguous(), "weights": weights / weights.sum(-1, True)}

    def router(self) -> torch.Tensor:
        return make("cancelling", 63, self.experts, self.hidden)

    def gate_up(self) -> torch.Tensor:
        return make("cancelling", 64, self.experts, 2 * self.inter, self.hidden)

    def down(self) -> torch.Tensor:
        return make("cancelling", 65, self.experts, self.hidden, self.inter)

    def act(self, rows: int) -> torch.Tensor:
        return make(self.kind, 66, rows * self.count, self.inter)

    def shared(self, rows: int) -> dict[str, torch.Tensor]:
        return {
            "shared_x": make(self.kind, 67, rows, self.shared_inter),
            "shared_weight": make("cancelling", 68, self.hidden, self.shared_inter),
            "gate_x": self.x(rows),
            "gate_weight": make("normal", 69, 1, self.hidden),
        }


EXPERTS = (
    Experts(hidden=64, inter=32, shared_inter=48, experts=16, count=4),
    Experts(hidden=67, inter=37, shared_inter=19, experts=13, count=3),
    Experts(hidden=100, inter=33, shared_inter=67, experts=40, count=8),
    Experts(hidden=33, inter=5, shared_inter=1, experts=1, count=1),
)
