"""Finds the shipped data folders: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from metpipe.errors import ConfigError

__all__ = ["conf_dir", "kernels_dir", "recipes_dir"]

PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The Hydra config tree (holds config.yaml)."""
    return _find("conf", "config.yaml")


def kernels_dir() -> Path:
    """The kernel sets and circuits (holds circuits/)."""
    return _find("kernels", "circuits")


def recipes_dir() -> Path:
    """The shipped recipes."""
    return _find("recipes", "README.md")


def _find(folder: str, landmark: str) -> Path:
    for root in (PACKAGE, PACKAGE.parent):
        if (root / folder / landmark).exists():
            return root / folder
    raise ConfigError(
        f"metpipe: no {folder}/{landmark} in the package ({PACKAGE}) or beside it: "
        "the installation is incomplete; install metpipe again"
    )
