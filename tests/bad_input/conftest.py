"""Bad input gets exit status 2 and one clear line: what, where it was set, what to do.

Whole command lines with the real job, in this process, each in a fresh folder. A kernel that writes
wrong bits, Ctrl-C and SIGTERM are in test_whole_runs.py.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from metpipe import app
from metpipe.errors import Exit
from metpipe.stages import live
from tests.bad_input.lines import Refused


def _drop_stream_handlers() -> None:
    """Hydra leaves handlers behind, which print to the streams of the test that made them."""
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.StreamHandler):
            logging.root.removeHandler(handler)
            handler.close()


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["metpipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    _drop_stream_handlers()
    handlers = logging.root.handlers[:]
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    for handler in set(logging.root.handlers) - set(handlers):
        handler.close()
    logging.root.handlers[:] = handlers
    live.OPEN.close()


@pytest.fixture
def refused(capsys) -> Refused:
    """Runs a line that must be refused; the message, without its heading."""

    def run(*argv: str, lines: int = 3) -> str:
        status = app.status_of(argv)
        err: str = capsys.readouterr().err
        assert status is Exit.USAGE, err
        assert err.startswith("config error\n")
        message = err.removeprefix("config error\n")
        assert "Traceback" not in message
        assert len(message.splitlines()) <= lines, message
        return message

    return run
