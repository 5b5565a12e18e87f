"""Neither the instruction set nor the number of threads or chunks changes a bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch

from tests.kernels.cpu.chain import chain_digest, run_chain
from tests.kernels.cpu.values import same_bits

CHAIN = Path(__file__).with_name("chain.py")


def in_another_process(cache: Path | None, **environment: str) -> tuple[str, bool]:
    settings = {**os.environ, **environment}
    if cache is not None:
        settings["METPIPE_CACHE"] = str(cache)
    done = subprocess.run(
        [sys.executable, str(CHAIN)], env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    digest, wide = done.stdout.split()
    return digest, wide == "True"


def test_the_chain_is_not_vacuous(cpu):
    outputs = run_chain(cpu.functions, "cancelling")
    for name, tensor in outputs.items():
        assert bool(tensor.isfinite().all()), name
        assert bool(tensor.ne(0).any()), name


def test_one_thread_and_two_agree(cpu, monkeypatch):
    before = numba.get_num_threads()
    digests = set()
    try:
        for threads in {1, min(2, numba.config.NUMBA_NUM_THREADS)}:
            numba.set_num_threads(threads)
            digests.add(chain_digest(cpu))
    finally:
        numba.set_num_threads(before)
    assert len(digests) == 1


@pytest.mark.parametrize("chunks", (2, 3, 7, 64))
def test_any_number_of_chunks_gives_the_same_bits(cpu, module, monkeypatch, chunks):
    launch = module("launch")
    monkeypatch.setattr(launch, "threads_for", lambda data_bytes: 1)
    alone = run_chain(cpu.functions, "cancelling")
    # Kernels that promise one chunk ask for no bytes; all others are split, however small.
    monkeypatch.setattr(launch, "threads_for", lambda data_bytes: chunks if data_bytes else 1)
    split = run_chain(cpu.functions, "cancelling")
    assert torch.equal(split.pop("tokens"), alone.pop("tokens"))
    for name, tensor in split.items():
        assert same_bits(tensor, alone[name]), name


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="needs AVX2")
def test_narrower_vectors_give_the_same_bits(cpu):
    """AVX2 has no 512-bit register: LLVM splits the sixteen lanes in two."""
    digest, wide = in_another_process(None, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="")
    assert not wide
    assert digest == chain_digest(cpu)
