"""One-row linears against torch's, in GB/s of weight bytes; and a prefill of 64 rows.

Run it with `python benchmarks/linear.py [rows ...]` (1 64). Weights rotate through at least 256 MB,
so that none sits in a cache; passes of both alternate, and figures are medians of passes. The bytes
of the outputs are checked first: a row must be the same alone and beside 63 others.
Reach: 1.2 times torch's bytes a second at one row.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from metpipe.engine.kernel_set import load_kernel_set
from metpipe.resources import kernels_dir

SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576), (4096, 4096))
WORKING_SET = 256 * 2**20
PASSES, SECONDS = 15, 3.0

Pass = Callable[[], None]


def main() -> None:
    """Prints a line for each shape and row count."""
    kernels = load_kernel_set(kernels_dir() / "cpu", package="metpipe_kernels.cpu")
    linear = kernels.functions["linear.linear"]
    together = kernels.functions["team.together"]
    rows_of = [int(text) for text in sys.argv[1:]] or [1, 64]
    print(f"{kernels.functions['environment.check_environment']()}, torch {torch.__version__}")
    print(
        f"{'rows':>5} {'n x k':>12} {'ours us':>9} {'torch us':>9} {'GB/s':>7} {'torch':>7} ratio"
    )
    for rows in rows_of:
        for n, k in SHAPES:
            _check_rows(linear, min(n, 1000), k)
            ours, theirs = _measure(linear, together, rows, n, k)
            speed = [2 * n * k / seconds / 1e9 for seconds in (ours, theirs)]
            print(
                f"{rows:>5} {f'{n} x {k}':>12} {ours * 1e6:>9.1f} {theirs * 1e6:>9.1f} "
                f"{speed[0]:>7.1f} {speed[1]:>7.1f} {theirs / ours:>5.2f}"
            )


def _check_rows(linear: Callable[..., Pass], n: int, k: int) -> None:
    x, weight = torch.randn(64, k).bfloat16(), torch.randn(n, k).bfloat16()
    together, alone = (torch.empty(size, n, dtype=torch.bfloat16) for size in (64, 1))
    linear(x=x, weight=weight, bias=None, y=together)()
    linear(x=x[5:6], weight=weight, bias=None, y=alone)()
    if not torch.equal(together[5:6].view(torch.int16), alone.view(torch.int16)):
        raise SystemExit("a row has other bits beside others: no time without a green check")


def _measure(
    linear: Callable[..., Pass], together: Callable[..., Pass], rows: int, n: int, k: int
) -> tuple[float, float]:
    """Seconds a launch, ours and torch's."""
    count = max(2, -(-WORKING_SET // (2 * n * k)))
    weights = [torch.randn(n, k).bfloat16() for _ in range(count)]
    x, y = torch.randn(rows, k).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
    # As a step runs them: in one parallel region, so that threads are woken once a pass.
    launches = [linear(x=x, weight=weight, bias=None, y=y) for weight in weights]

    ours = together(launches)

    def theirs() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)

    times: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    deadline = time.perf_counter() + SECONDS
    while len(times[0]) < 3 or (len(times[0]) < PASSES and time.perf_counter() < deadline):
        for kept, run in zip(times, (ours, theirs), strict=True):
            started = time.perf_counter()
            run()
            kept.append((time.perf_counter() - started) / count)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    with torch.inference_mode():
        main()
