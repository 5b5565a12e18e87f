"""transformers as a guest: asked for early, imported late, offline and silent."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from metpipe.errors import ConfigError
from metpipe.oracle import library, quiet, require_oracle
from tests.oracle.extra import needs_transformers

pytestmark = needs_transformers


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(ConfigError, match=r"needs accelerate, .*pip install 'metpipe\[oracle\]'"):
        require_oracle()


def test_an_old_version_is_refused_by_number(monkeypatch):
    monkeypatch.setattr(library, "version", lambda name: "4.57.1")
    with pytest.raises(ConfigError, match=r"transformers 4\.57\.1 is installed.*--upgrade"):
        require_oracle()


def test_what_is_installed_here_is_accepted():
    require_oracle()


def test_stages_are_planned_without_importing_transformers():
    code = (
        "import sys, metpipe.stages.plan, metpipe.oracle; metpipe.oracle.require_oracle(); "
        "sys.exit('transformers' in sys.modules or 'huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hub_is_offline_even_when_its_client_was_imported_before(monkeypatch):
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with quiet():
        assert huggingface_hub.is_offline_mode()
        assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_warnings_and_logs_are_silent_for_as_long_as_it_lasts(capfd):
    from transformers.utils import logging

    before = logging.get_verbosity()
    with quiet():
        warnings.warn("of the guest", stacklevel=1)
        logging.get_logger("transformers.any").warning("of the guest")
        assert not logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == before
    with pytest.warns(UserWarning, match="of the host"):
        warnings.warn("of the host", stacklevel=1)


def test_errors_pass_through_and_leave_everything_as_it_was():
    import gguf

    reader = gguf.GGUFReader

    def fail() -> None:
        with quiet(), library.gguf_read_once():
            assert gguf.GGUFReader is not reader
            raise KeyError("guest")

    with pytest.raises(KeyError, match="guest"):
        fail()
    assert gguf.GGUFReader is reader


def test_a_gguf_is_parsed_once_and_without_a_bar(capfd, monkeypatch, tmp_path):
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    parsed = []
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: parsed.append(path) or object())
    with quiet(), library.gguf_read_once():
        assert gguf.GGUFReader(tmp_path) is gguf.GGUFReader(tmp_path)
        assert list(modeling_gguf_pytorch_utils.tqdm([1, 2], desc="of the guest")) == [1, 2]
    assert parsed == [tmp_path]
    assert capfd.readouterr() == ("", "")
