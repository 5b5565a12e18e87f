"""The built-in CPU set, loaded as the engine loads it, and its twins."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from metpipe.engine.kernel_set import KernelSet, load_kernel_set

FOLDER = Path(__file__).resolve().parents[3] / "kernels" / "cpu"
PACKAGE = "metpipe_kernels.cpu"


@pytest.fixture(scope="session")
def cpu() -> KernelSet:
    return load_kernel_set(FOLDER, package=PACKAGE)


@pytest.fixture(scope="session")
def module(cpu: KernelSet) -> Callable[[str], ModuleType]:
    """A module of the set by its short name: `norm`, `naive.norm`."""
    return lambda name: importlib.import_module(f"{PACKAGE}.{name}")
