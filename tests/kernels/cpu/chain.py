"""A fixed chain over every kernel of the set, and the digest of all that it writes.

Run as a script in another process (other instruction set, other number of threads): it prints the
digest and whether 512-bit registers appear in the compiled dot.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from metpipe.engine.kernel_set import KernelSet, load_kernel_set  # noqa: E402
from tests.kernels.cpu.cache_of import Cache  # noqa: E402
from tests.kernels.cpu.hybrid_chain import run_hybrid_chain  # noqa: E402
from tests.kernels.cpu.values import bits, make  # noqa: E402

ROWS, DIM, INTER, VOCAB = 5, 320, 1000, 515
"""A weight of 320 x 2000 is past the size from which two threads run."""


def run_chain(functions: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
    """Runs every kernel once on values of a class; the outputs by name."""
    cache = Cache(heads=5, kv_heads=1, head_dim=64, kind=kind)
    pools, where, rope = cache.pools(), cache.where(ROWS), cache.rope(ROWS)
    written: dict[str, torch.Tensor] = {}

    def out(name: str, *shape: int) -> torch.Tensor:
        written[name] = torch.zeros(shape, dtype=torch.bfloat16)
        return written[name]

    ids = torch.tensor([3, 514, 0, 77, 514], dtype=torch.int32)
    table, vector, head = make(kind, 1, VOCAB, DIM), make("normal", 2, DIM), make("normal", 3, 64)
    square = [make("cancelling", 4 + i, DIM, DIM) for i in range(2)]
    narrow = [make("cancelling", 6 + i, 64, DIM) for i in range(2)]
    wide, down = make("cancelling", 8, 2 * INTER, DIM), make("cancelling", 9, DIM, INTER)

    def call(kernel: str, **arguments: Any) -> None:
        functions[kernel](**arguments)()

    x = out("x", ROWS, DIM)
    call("embed.embed", token_ids=ids, table=table, y=x)
    xn = out("xn", ROWS, DIM)
    call("norm.rms_norm", x=x, weight=vector, y=xn, eps=1e-6)
    q, k, v = out("q", ROWS, DIM), out("k", ROWS, 64), out("v", ROWS, 64)
    call(
        "linear.qkv", x=xn, q_weight=square[0], k_weight=narrow[0], v_weight=narrow[1],
        q_bias=vector, k_bias=None, v_bias=None, q=q, k=k, v=v,
    )  # fmt: skip
    qn, qr, kr = out("qn", ROWS, DIM), out("qr", ROWS, DIM), out("kr", ROWS, 64)
    call("norm.head_norm", x=q, weight=head, y=qn, eps=1e-6)
    call("rope.rope", q=qn, k=k, **rope, head_dim=64, q_out=qr, k_out=kr)
    call("kv.kv_write", k=kr, v=v, **where, **pools)
    call(
        "rope.rope_write",
        q=q,
        k=k,
        v=v,
        **rope | where,
        **pools,
        head_dim=64,
        q_out=out("qw", ROWS, DIM),
    )
    call(
        "fused.norm_rope_write", q=q, k=k, v=v, q_weight=head, k_weight=head,
        q_eps=1e-6, k_eps=1e-6, **rope | where, **pools, q_out=out("qf", ROWS, DIM),
    )  # fmt: skip
    a = out("a", ROWS, DIM)
    call("attention.paged_attention", q=qr, **pools, **where, head_dim=64, scale=0.125, y=a)
    o, y = out("o", ROWS, DIM), out("y", ROWS, DIM)
    call("linear.linear", x=a, weight=square[1], bias=None, y=o)
    call("residual.residual_add", stream=x, delta=o, y=y)
    total, yn = out("total", ROWS, DIM), out("yn", ROWS, DIM)
    call("norm.add_rms_norm", stream=x, delta=o, weight=vector, total=total, y=yn, eps=1e-6)
    both, act = out("both", ROWS, 2 * INTER), out("act", ROWS, INTER)
    call("linear.linear", x=yn, weight=wide, bias=None, y=both)
    call("activation.silu_mul", gate_up=both, y=act)
    call("linear.gate_up_silu", x=yn, weight=wide, bias=None, y=out("fused_act", ROWS, INTER))
    call("linear.linear_add", x=act, weight=down, bias=None, stream=total, y=out("z", ROWS, DIM))
    logits, tokens = out("logits", ROWS, VOCAB), torch.zeros(ROWS, dtype=torch.int32)
    call("linear.linear", x=written["z"], weight=table, bias=None, y=logits)
    call("head.argmax", logits=logits, tokens=tokens)
    hybrid = {f"hybrid.{name}": made for name, made in run_hybrid_chain(functions, kind).items()}
    return {**written, **pools, "tokens": tokens, **hybrid}


def chain_digest(kernels: KernelSet) -> str:
    """The digest of the chain over several classes of values."""
    parts = []
    for kind in ("normal", "cancelling", "paired", "sparse_nan_and_inf", "huge_and_tiny"):
        for tensor in run_chain(kernels.functions, kind).values():
            raw = bits(tensor) if tensor.dtype == torch.bfloat16 else tensor
            parts.append(f"{kernels.functions['hash.hash128'](raw):032x}")
    whole = torch.tensor([ord(letter) for part in parts for letter in part], dtype=torch.uint8)
    return f"{kernels.functions['hash.hash128'](whole):032x}"


if __name__ == "__main__":
    loaded = load_kernel_set(ROOT / "kernels" / "cpu", package="metpipe_kernels.cpu")
    digest = chain_digest(loaded)
    body = loaded.functions["linear.linear"].__globals__["_linear"]
    assembly = "".join(body.inspect_asm().values())
    print(digest, "zmm" in assembly)
