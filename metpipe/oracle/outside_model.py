"""A checkpoint opened by transformers: bf16 weights, one teacher-forced forward per prompt.

Shapes: T tokens of a sequence, R positions whose logits are kept, V logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from metpipe.engine.checkpoints import Checkpoint
from metpipe.engine.checkpoints.memory_check import free_memory
from metpipe.errors import ConfigError
from metpipe.nouns import number_of
from metpipe.oracle.checkpoint_files import CheckpointFiles
from metpipe.oracle.library import gguf_read_once, transformers_version

__all__ = ["OutsideModel", "check_free_memory"]

FP32_BYTES = 4
UNREAD_KEYS = ("head_dim", "attention_bias", "mlp_bias")
"""Config keys that transformers does not read from the .gguf of every architecture."""


@dataclass(slots=True)
class OutsideModel:
    """Computes in bf16 until `widen` turns the same weights into fp32."""

    model: Any
    given: tuple[str, ...]
    """Config keys that transformers can't read from this .gguf, and that were given to it."""

    @classmethod
    def open(cls, files: CheckpointFiles, stated: Mapping[str, object]) -> OutsideModel:
        """Read config and weights with transformers' own reader, weights rounded to bf16.

        `stated`: the config as metpipe read it, for the few keys that a .gguf keeps where
        transformers doesn't look.

        Raises:
            ConfigError: transformers can't read the checkpoint, or finds a tensor missing.
        """
        try:
            with gguf_read_once():
                config, given = _read_config(files, stated)
                model, loading = _read_model(files, config)
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(
                f"oracle=transformers: transformers {transformers_version()} can't read "
                f"{files.path} ({_first_line(error)}); run with oracle=null, or take a version "
                "that knows the model"
            ) from error
        if missing := sorted(loading["missing_keys"]):
            raise ConfigError(
                f"oracle=transformers: transformers {transformers_version()} finds no "
                f"{', '.join(missing[:3])} in {files.path} "
                f"({number_of(len(missing), 'tensor')} missing), so its logits would be random; "
                "run with oracle=null"
            )
        _cast(model, torch.bfloat16)
        return cls(model, given)

    def logits(self, tokens: Sequence[int], last: int) -> torch.Tensor:
        """[R, V]: the logits at the last R positions of one forward over all tokens, no cache."""
        ids_1T = torch.tensor([list(tokens)], dtype=torch.int64)
        with torch.inference_mode():
            out = self.model(input_ids=ids_1T, use_cache=False, logits_to_keep=last)
        logits_RV: torch.Tensor = out.logits[0]
        return logits_RV

    def widen(self) -> None:
        """Turn each bf16 weight into the fp32 number that it stands for, in place."""
        _cast(self.model, torch.float32)


def check_free_memory(checkpoint: Checkpoint) -> None:
    """ConfigError when the weights in fp32 do not fit beside what this process already holds."""
    needed, free = FP32_BYTES * sum(map(prod, checkpoint.tensors.values())), free_memory()
    if needed > free:
        raise ConfigError(
            f"oracle=transformers: {checkpoint.source} needs {needed / 2**30:.2f} GiB in fp32, "
            f"but {free / 2**30:.2f} GiB are free on this machine; run with oracle=null, or free "
            "memory and go on with resume=RUN"
        )


def _read_config(
    files: CheckpointFiles, stated: Mapping[str, object]
) -> tuple[Any, tuple[str, ...]]:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(files.folder, local_files_only=True, **_gguf(files))
    return config, () if files.gguf is None else _give_unread(config, stated)


def _read_model(files: CheckpointFiles, config: Any) -> tuple[Any, Mapping[str, Any]]:
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained
    model, loading = read(
        files.folder,
        config=config,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        experts_implementation="eager",  # others need rows of a multiple of 16 bytes
        local_files_only=True,
        output_loading_info=True,
        **(_gguf(files) or {"use_safetensors": True}),
    )
    return model.eval(), loading


def _gguf(files: CheckpointFiles) -> dict[str, Any]:
    return {} if files.gguf is None else {"gguf_file": files.gguf}


def _give_unread(config: Any, stated: Mapping[str, object]) -> tuple[str, ...]:
    """Give the config what transformers' gguf reader leaves at a default of its own; the keys.

    Sizes, epsilon, theta and tying stay as transformers read them.
    """
    own = {key: getattr(config, key, None) for key in UNREAD_KEYS}
    own["head_dim"] = own["head_dim"] or config.hidden_size // config.num_attention_heads
    given = [key for key in UNREAD_KEYS if key in stated and stated[key] != own[key]]
    for key in given:
        setattr(config, key, stated[key])
    scaling = stated.get("rope_scaling")
    if isinstance(scaling, Mapping):
        config.rope_parameters = {**scaling, "rope_theta": config.rope_parameters["rope_theta"]}
        given.append("rope_scaling")
    return tuple(given)


def _cast(model: Any, dtype: torch.dtype) -> None:
    """One parameter at a time, so that no second copy of the weights is ever held.

    Buffers (the rotary frequencies) stay fp32. NOTE: the library refuses `model.float()` for what
    came from a .gguf, although nothing in it is quantised any more.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtype)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
