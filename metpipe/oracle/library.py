"""The transformers library as the oracle uses it: present, without a network, and silent."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from metpipe.errors import ConfigError

__all__ = ["gguf_read_once", "quiet", "require_oracle", "transformers_version"]

INSTALL = "pip install 'metpipe[oracle]'"
OLDEST_MAJOR = 5
"""Since then models read a dtype at load and keep it; before, other arguments did that."""


def require_oracle() -> None:
    """Called before anything is decoded; finds the packages without importing them.

    Raises:
        ConfigError: transformers or accelerate is not installed, or transformers is too old.
    """
    missing = [name for name in ("transformers", "accelerate") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"oracle=transformers: needs {' and '.join(missing)}, which this environment lacks; "
            f"install the extra ({INSTALL}), or run with oracle=null"
        )
    found = transformers_version()
    if int(found.partition(".")[0]) < OLDEST_MAJOR:
        raise ConfigError(
            f"oracle=transformers: transformers {found} is installed, but {OLDEST_MAJOR}.0 or "
            f"later is needed; upgrade it ({INSTALL} --upgrade), or run with oracle=null"
        )


def transformers_version() -> str:
    """The installed version.

    Raises:
        ConfigError: it is importable, but no installed package.
    """
    try:
        return version("transformers")
    except PackageNotFoundError as error:
        raise ConfigError(
            "oracle=transformers: a transformers folder can be imported, but no package of that "
            f"name is installed; install the extra ({INSTALL}), or run with oracle=null"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """While it lasts transformers fetches nothing and says nothing but errors.

    Its warnings and bars go, whichever way they are shown; exceptions pass through.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _stay_offline()
        with _library_silenced():
            yield


def _stay_offline() -> None:
    """For the whole process: the hub's client reads the variable once, when it is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = True


@contextmanager
def _library_silenced() -> Iterator[None]:
    import transformers.utils.logging

    logging: Any = transformers.utils.logging  # partly annotated
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """While it lasts each part of a .gguf is parsed once, and without a bar.

    transformers parses the whole file, vocabulary and all, once for the config and once more for
    the weights, and builds the same table of names for each of the model's modules.
    """
    import gguf

    with ExitStack() as stack:
        stack.enter_context(_swapped(gguf, "GGUFReader", lru_cache(maxsize=1)(gguf.GGUFReader)))
        names = lru_cache(gguf.get_tensor_name_map)
        stack.enter_context(_swapped(gguf, "get_tensor_name_map", names))
        with suppress(ImportError):  # this reader is to go; its bar ignores the library's switch
            # Not `import a.b` and then a.b: the library's lazy module may lack the attribute.
            reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
            stack.enter_context(_swapped(reader, "tqdm", partial(reader.tqdm, disable=True)))
        yield


@contextmanager
def _swapped(module: object, name: str, value: object) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)
