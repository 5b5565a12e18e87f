"""The built-in CPU set, loaded as the engine loads it, and its twins."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

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


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """The values are small: torch's second thread only gets in the kernels' way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
