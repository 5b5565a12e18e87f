"""What stands at a path where a regular file is needed."""

from __future__ import annotations

import os

__all__ = ["kind_of"]


def kind_of(path: str | os.PathLike[str]) -> str:
    """`it is a folder`, `it is no regular file`; empty for a file, and where nothing is found.

    A pipe or a device is looked at, never opened: reading one may wait forever.
    """
    if os.path.isdir(path):
        return "it is a folder"
    return "it is no regular file" if os.path.exists(path) and not os.path.isfile(path) else ""
