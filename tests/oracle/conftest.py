"""No model stays open from one test to the next, and nothing may reach for a network."""

from __future__ import annotations

import socket

import pytest

from metpipe.stages import live


@pytest.fixture(autouse=True)
def _fresh_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that a test spoils must not be spared by a model that is open already."""
    monkeypatch.setattr(live, "OPEN", type(live.OPEN)())


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.socket, address: object) -> None:
        raise AssertionError(f"reached for {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
