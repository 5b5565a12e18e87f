"""The Hopper set, loaded as the engine loads it, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from metpipe.engine.kernel_set import KernelSet, load_kernel_set

FOLDER = Path(__file__).resolve().parents[3] / "kernels" / "hopper"
PACKAGE = "metpipe_kernels.hopper"


@pytest.fixture(scope="session")
def gpu() -> KernelSet:
    return load_kernel_set(FOLDER, package=PACKAGE, on=PACKAGE)
