"""With this folder on PYTHONPATH, the fake job takes the place of the real one in every process.

A launcher's processes import metpipe anew, so a test can't hand them a module.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "metpipe.stages.job"


class FakeJob(MetaPathFinder, Loader):
    """Finds the one module, and makes it from tests/fake_job.py."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        from tests.fake_job import run_job

        module.run_job = run_job  # type: ignore[attr-defined]


sys.meta_path.insert(0, FakeJob())
