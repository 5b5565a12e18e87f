"""Where fetched checkpoints and file digests are kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from metpipe.whole_file import write_whole

__all__ = ["cache_dir", "cached_by_files"]


def cache_dir() -> Path:
    """$METPIPE_CACHE, or ~/.cache/metpipe. It need not exist yet."""
    chosen = os.environ.get("METPIPE_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "metpipe"


def cached_by_files(kind: str, files: Iterable[Path], compute: Callable[[], str]) -> str:
    """`compute()`, remembered for as long as every file keeps its path, size and mtime.

    The cache only saves time: when it can't be read or written, the value is computed again.
    """
    entry = cache_dir() / "digests" / f"{_files_key(kind, files)}.txt"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        kept = entry.read_text(encoding="utf-8")
        if len(kept) == 64:
            return kept
    value = compute()
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry, value)
    return value


def _files_key(kind: str, files: Iterable[Path]) -> str:
    hasher = hashlib.sha256(kind.encode())
    for file in sorted(path.resolve() for path in files):
        facts = file.stat()
        hasher.update(f"\0{file}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    return hasher.hexdigest()
