"""The built-in CPU set and the awkward circuits, opened once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from metpipe.circuit import Circuit
from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.engine.microtest import AWKWARD
from metpipe.engine.opening import circuit_of


@pytest.fixture(scope="session")
def sets() -> KernelSets:
    return open_kernel_sets("cpu", None)


@pytest.fixture(scope="session")
def circuits() -> dict[str, Circuit]:
    return {name: circuit_of(config, name) for name, config in AWKWARD.items()}


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """The values are small: torch's second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
