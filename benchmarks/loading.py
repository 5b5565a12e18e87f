"""Loading a checkpoint of safetensors to a GPU, beside a plain read of the same files.

`python -m benchmarks.loading FOLDER [SHAPE]`: writes a synthetic checkpoint of SHAPE (qwen3_8b) to
FOLDER if there is none. Each is done with the files dropped from the page cache, and again with
them in it. Reach: loading at no less than half of a plain read's speed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.decode import OnDevice, config_of
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.opening import circuit_of
from metpipe.engine.weights import load_weights

FILE_BYTES, CHUNK = 4 << 30, 16 << 20


def main() -> None:
    """Print the speeds in GB/s."""
    folder = Path(sys.argv[1])
    config = config_of(sys.argv[2] if len(sys.argv) > 2 else "qwen3_8b")
    if not (folder / "config.json").is_file():
        begin = time.perf_counter()
        write(folder, config)
        print(f"written in {time.perf_counter() - begin:.1f} s", flush=True)
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    checkpoint = open_checkpoint(ModelSource(name="loading", checkpoint=str(folder)))
    circuit = circuit_of(config, "loading")
    torch.zeros(1, device="cuda")

    def load() -> None:
        load_weights(circuit, checkpoint, Allocator(torch.device("cuda")))
        torch.cuda.synchronize()

    for state in ("not cached", "cached"):
        for name, call in (("plain read", lambda: read(files)), ("loading", load)):
            if state == "not cached":
                drop(files)
            seconds = timed(call)
            torch.cuda.empty_cache()
            print(f"{state}: {name} {size / seconds / 1e9:.2f} GB/s, {seconds:.1f} s", flush=True)


def timed(call: Callable[[], None]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def read(files: list[Path]) -> None:
    """Read files from front to end into one buffer."""
    buffer = bytearray(CHUNK)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def drop(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write(folder: Path, config: dict[str, object]) -> None:
    """A checkpoint of random values, in files of a few gigabytes."""
    folder.mkdir(parents=True, exist_ok=True)
    source = OnDevice(config)
    parts: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name in source.tensors:
        tensor = source.read(name).cpu()
        if filled + tensor.nbytes > FILE_BYTES and parts[-1]:
            parts.append({})
            filled = 0
        parts[-1][name] = tensor
        filled += tensor.nbytes
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    for file, tensors in zip(names, parts, strict=True):
        save_file(tensors, folder / file, metadata={"format": "pt"})
    places = {name: file for file, tensors in zip(names, parts, strict=True) for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
