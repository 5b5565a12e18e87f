"""Files that a reader sees whole or not at all, also when their writer is killed."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write `text` beside `path`, then put it in its place by one rename."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
