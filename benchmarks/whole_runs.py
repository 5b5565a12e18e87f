"""Whole command lines, start to exit: seconds, exit status, peak memory of the process.

Run it with `python benchmarks/whole_runs.py [case ...]`. Kernels are compiled into a cache of the
benchmark's own: `first` starts with it empty, the others find it full. Each case but `first` runs
three times; the median counts.
Reach: default 10 s, first 40 s, smollm2 45 s and under 2 GiB, help 1.5 s.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES: dict[str, tuple[str, ...]] = {
    "first": (),
    "default": (),
    "help": ("--help",),
    "smollm2": ("model=smollm2", "variant=all", "prompts=4", "steps=32"),
    "oracle": ("model=smollm2", "variant=all", "hardware=b200", "oracle=transformers"),
    "sweep": ("-m", "pipeline=memory", "slots=1,4,16", "hardware=h200_sxm,b200"),
}
REPEATS = 3


def main() -> None:
    """Print a line for each case."""
    wanted = sys.argv[1:] or list(CASES)
    checkpoints = Path(os.environ.get("METPIPE_CACHE") or Path.home() / ".cache" / "metpipe")
    with tempfile.TemporaryDirectory(prefix="metpipe-bench-") as folder:
        cache = Path(folder) / "cache"
        cache.mkdir()
        if (checkpoints / "checkpoints").is_dir():
            (cache / "checkpoints").symlink_to(checkpoints / "checkpoints")
        for case in wanted:
            if case != "first" and not (cache / "numba").is_dir():
                timed((), Path(folder), cache)
            runs = [
                timed(CASES[case], Path(folder), cache)
                for _ in range(1 if case == "first" else REPEATS)
            ]
            seconds = statistics.median(run[0] for run in runs)
            peak = max(run[2] for run in runs)
            print(f"{case:<9} {seconds:7.2f} s  exit {runs[0][1]}  peak {peak / 2**20:6.0f} MiB")


def timed(arguments: tuple[str, ...], folder: Path, cache: Path) -> tuple[float, int, int]:
    """Seconds, exit status and peak resident bytes of one command line."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "metpipe", *arguments],
        cwd=folder,
        env={**os.environ, "METPIPE_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - begin, process.returncode, peak_bytes(usage)


def peak_bytes(usage: resource.struct_rusage) -> int:
    """Peak resident memory; Linux counts it in KiB, macOS in bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
