"""A planted model must not serve the next test."""

from __future__ import annotations

import pytest

from metpipe.stages.live import OPEN


@pytest.fixture(autouse=True)
def _no_model_of_an_earlier_test():
    OPEN.close()
    yield
    OPEN.close()
