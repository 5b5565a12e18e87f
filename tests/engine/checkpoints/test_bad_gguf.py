"""Broken, truncated and foreign gguf files end in a ConfigError that names file and cause."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.checkpoints.gguf_file import open_gguf
from metpipe.engine.checkpoints.gguf_header import read_gguf_header
from metpipe.errors import ConfigError

from .models import gguf_writer, weights, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a sound file."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return write_gguf(path, "llama", weights("llama", tied=True), Kind.Q8_0).read_bytes()


def _refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path.name}: {message}"):
        open_checkpoint(ModelSource("any", checkpoint=str(path)))


def test_header_says_the_same_as_the_package_reader(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    assert set(header.tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        mine = header.tensors[tensor.name]
        assert (mine.type, mine.start) == (tensor.tensor_type, tensor.data_offset)
        assert mine.stop - mine.start == tensor.n_bytes
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert header.metadata == {n: v for n, v in fields.items() if not n.startswith("GGUF.")}


def test_truncated_data_names_the_tensor(tmp_path: Path, whole: bytes) -> None:
    _refused(tmp_path / "model.gguf", whole[:-40], r"truncated: \S+ ends at byte \d+, the file has")


def test_truncated_header_is_named(tmp_path: Path, whole: bytes) -> None:
    _refused(tmp_path / "model.gguf", whole[:700], r"truncated: its header goes on beyond")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GG", "truncated"),
        (b"GGML" + b"\0" * 60, "isn't a sound gguf file: it doesn't begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 60, ".*version 1 of the format"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 60, ".*version 50331648 of the format"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "its architecture is None"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "truncated"),
    ],
    ids=["empty", "two bytes", "ggml", "version 1", "big-endian", "no metadata", "vast count"],
)
def test_foreign_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    _refused(tmp_path / "model.gguf", content, message)


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    made = weights("llama", tied=True)
    path = write_gguf(tmp_path / "model.gguf", "gptneox", made)
    with pytest.raises(ConfigError, match="its architecture is 'gptneox'; metpipe reads"):
        open_gguf(path)


def test_unknown_quantisation_type_is_named(tmp_path: Path, whole: bytes) -> None:
    name = b"token_embd.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8  # past the count of dimensions and both
    assert whole[at : at + 4] == struct.pack("<I", Kind.Q8_0)
    broken = whole[:at] + struct.pack("<I", 4711) + whole[at + 4 :]
    message = r"tensor token_embd\.weight is of quantisation type 4711"
    _refused(tmp_path / "model.gguf", broken, message)


def test_type_that_cannot_be_dequantised_is_named(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "model.gguf", "qwen3")
    writer.add_tensor("output.weight", np.ones((40, 64), dtype=np.int8))
    made = weights("qwen3", tied=True)
    path = write_gguf(tmp_path / "model.gguf", "qwen3", made, writer=writer)
    with pytest.raises(ConfigError, match=r"tensor output\.weight is of type I8, which the gguf"):
        open_gguf(path)


def test_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    made = weights("llama", tied=False)
    del made["model.embed_tokens.weight"]
    path = write_gguf(tmp_path / "model.gguf", "llama", made)
    with pytest.raises(ConfigError, match=r"has no token_embd\.weight.*split"):
        open_gguf(path)


@pytest.mark.parametrize("seed", range(200))
def test_no_damage_to_the_header_escapes_as_another_error(
    tmp_path: Path, whole: bytes, seed: int
) -> None:
    """Bytes changed or cut anywhere: the file opens and reads, or a ConfigError names it."""
    draws = random.Random(seed)
    broken = bytearray(whole)
    for _ in range(draws.randint(1, 4)):
        broken[draws.randrange(2500)] = draws.choice((0, 1, 2, 9, 255, draws.randrange(256)))
    cut = len(broken) if draws.random() < 0.7 else draws.randrange(len(broken))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(broken[:cut])
    try:
        opened = open_gguf(path)
        read = [opened.read(name) for name in opened.tensors]
    except ConfigError as error:
        said = str(error)
    else:
        said = f"damaged.gguf gave {len(read)} tensors"
    assert "damaged.gguf" in said
