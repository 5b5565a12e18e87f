"""The generators give the published streams, and files are read or refused with file and line."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from metpipe.diff.prompt_file import read_prompts
from metpipe.diff.prompts import batch_prompts, generate, prompt_of_len, prompts, prompts_of_lengths
from metpipe.errors import ConfigError


def digest_of(sequences: list[list[int]]) -> str:
    flat = [token for tokens in sequences for token in tokens]
    return sha256(np.array(flat, dtype="<u4").tobytes()).hexdigest()


def test_stream_takes_the_high_bits_of_each_state() -> None:
    stream = generate(0x5EED0928, 2**31)
    first = [next(stream) - 64 for _ in range(3)]
    assert first == [960234158, 1207064231, 1706162518]


def test_lengths_of_prompts() -> None:
    assert [len(p) for p in prompts(4, 1000)] == [23, 64, 105, 146]
    assert [len(p) for p in batch_prompts(20, 1000)][:3] == [12, 19, 26]


@pytest.mark.parametrize("vocab_size", [1000, 151936, 129])
def test_ids_avoid_both_ends_of_the_vocabulary(vocab_size: int) -> None:
    made = prompts(4, vocab_size) + batch_prompts(20, vocab_size)
    assert all(64 <= token < vocab_size - 64 for tokens in made for token in tokens)


def test_prompts_differ_from_each_other() -> None:
    first, second = prompts(2, 1000)
    assert first[:10] != second[:10]
    batch = batch_prompts(20, 1000)
    assert len(batch[16]) == 12
    assert batch[16] != batch[0][:12]


def test_one_stream_runs_through_all_prompts() -> None:
    assert prompts(4, 1000)[:2] == prompts(2, 1000)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(prompts(2, 1000)[0], "902 911 406 441 916 753 778 608", id="p0-v1000"),
        pytest.param(prompts(2, 1000)[1], "666 105 723 697 462 629 681 609", id="p1-v1000"),
        pytest.param(
            prompts(1, 151936)[0],
            "48622 38887 144278 43409 23796 121369 132954 95072",
            id="p0-v151936",
        ),
        pytest.param(
            prompts(1, 248320)[0],
            "227566 106599 90774 140689 34548 115993 233818 95072",
            id="p0-v248320",
        ),
        pytest.param(batch_prompts(2, 1000)[0], "591 291 693 368 114 576", id="batch2-row0"),
        pytest.param(batch_prompts(2, 1000)[1], "651 97 210 335 502 186", id="batch2-row1"),
        pytest.param(batch_prompts(4, 1000)[0], "812 629 500 76 92 536", id="batch4-row0"),
        pytest.param(batch_prompts(20, 1000)[0], "679 901 700 881 103 745", id="batch20-row0"),
        pytest.param(prompt_of_len(1, 1000), "169", id="len1"),
        pytest.param(prompt_of_len(16, 1000), "397 153 307 205 743 180", id="len16"),
        pytest.param(prompt_of_len(17, 1000), "82 522 303 329 757 573", id="len17"),
        pytest.param(prompt_of_len(64, 1000), "610 179 750 378 628 414", id="len64"),
        pytest.param(prompt_of_len(65, 1000), "866 480 275 731 786 679", id="len65"),
        pytest.param(
            prompt_of_len(256, 248320), "42490 17543 55110 168219 97336 178789", id="len256"
        ),
    ],
)
def test_first_ids(tokens: list[int], expected: str) -> None:
    wanted = [int(word) for word in expected.split()]
    assert tokens[: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(
            prompts(4, 1000),
            "9fc3363b8a9e748435ba4c724a6df0c923f9d055c28a0317fafa905724a9d401",
            id="prompts",
        ),
        pytest.param(
            batch_prompts(20, 1000),
            "d85537bf19d2b8a90ffc1207f91515d73a683267ce4d2242d328f80213ebe01c",
            id="batch",
        ),
        pytest.param(
            [prompt_of_len(4096, 1000)],
            "dbee205c29a219576c41b23ca5b1a281d61a2ea76a7afcec40b522f019b678b3",
            id="length",
        ),
    ],
)
def test_digest_of_all_ids(made: list[list[int]], expected: str) -> None:
    assert digest_of(made) == expected


@pytest.mark.parametrize("length", [1, 16, 17, 64, 65, 4096])
def test_prompt_has_the_asked_length(length: int) -> None:
    assert len(prompt_of_len(length, 1000)) == length


def test_no_length_is_a_prefix_of_another() -> None:
    shorter, longer = prompts_of_lengths([64, 65], 1000)
    assert longer[:64] != shorter


def test_a_vocabulary_without_id_64_is_refused() -> None:
    assert prompt_of_len(3, 65) == [64, 64, 64]
    with pytest.raises(ConfigError, match=r"vocabulary of 64 ids.*prompts=FILE"):
        prompts(1, 64)
    with pytest.raises(ConfigError, match="prompt length 0"):
        prompt_of_len(0, 1000)


def write_lines(folder: Path, content: bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(content)
    return path


def letters(text: str) -> list[int]:
    return [ord(letter) % 100 for letter in text]


def test_every_form_of_a_line_is_read(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf{"tokens": [1, 2], "source": "a corpus"}\r\n\n'
        b'{"text": "ab"}\n[3, 99]\n"line\xe2\x80\xa8separator"'
    )
    read = read_prompts(write_lines(tmp_path, content), letters, 100)
    assert read == [[1, 2], letters("ab"), [3, 99], letters("line\u2028separator")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"[1]\n{oops}\n", r"line 2, column 2: not JSON", id="json"),
        pytest.param(b"[1]\n[" + b"1" * 5000 + b"]", "line 2: JSON that cannot", id="digits"),
        pytest.param(b"[" * 100_000, "line 1: JSON that cannot", id="nesting"),
        pytest.param(b"[1]\n[1, 100]\n", "line 2: id 100 is outside the vocabulary", id="id"),
        pytest.param(b"[-1]", "line 1: id -1 is outside", id="negative"),
        pytest.param(b"[1.0]", "1.0 is not a token id", id="float"),
        pytest.param(b"[true]", "True is not a token id", id="bool"),
        pytest.param(b"\n\n[]", "line 3: the prompt is empty", id="empty-list"),
        pytest.param(b'""', "line 1: the prompt is empty", id="empty-text"),
        pytest.param(b"\n \n", "no prompt in it", id="empty-file"),
        pytest.param(b'{"tokens": [1], "text": "a"}', "needs one of", id="both"),
        pytest.param(b'{"ids": [1]}', "has none", id="neither"),
        pytest.param(b'{"tokens": "ab"}', "tokens: is str, not list", id="tokens-str"),
        pytest.param(b'{"text": [1]}', "text: is list, not str", id="text-list"),
        pytest.param(b"7", "line 1: is int", id="number"),
        pytest.param(b'"a\xff"', "line 1: not UTF-8 at byte 2", id="utf8"),
        pytest.param(b'"\\ud800"', "half a surrogate pair at character 0", id="surrogate"),
    ],
)
def test_a_bad_file_names_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = write_lines(tmp_path, content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_prompts(path, letters, 100)
    assert str(path) in str(caught.value)


def test_text_needs_a_tokenizer_and_a_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1: is text.*no tokenizer"):
        read_prompts(write_lines(tmp_path, b'"ab"'), None, 100)
    with pytest.raises(ConfigError, match=r"missing\.jsonl: cannot be read"):
        read_prompts(tmp_path / "missing.jsonl", None, 100)
