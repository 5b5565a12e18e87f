"""The mark of tests that the extra `oracle` is needed for."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["needs_transformers"]

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the extra `oracle` isn't installed"
)
