"""Prompts read from a .jsonl file: one prompt a line, as token ids or as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from metpipe.errors import ConfigError

__all__ = ["Encode", "read_prompts"]

Encode = Callable[[str], list[int]]
"""A tokenizer's text -> ids."""

FORMS = '{"tokens": [1, 2]}, {"text": "..."}, a list of ids or a string'


def read_prompts(path: Path, encode: Encode | None, vocab_size: int) -> list[list[int]]:
    """The prompts of a file; blank lines separate nothing and are passed over.

    `encode` is None when the checkpoint has no tokenizer: then only ids can be read.
    Raises ConfigError naming the file and the line: bad JSON, another form than those of FORMS, an
    id outside the vocabulary, an empty prompt, a file without prompts.
    """
    # Split at b"\n" alone: U+2028 inside a string must not count as an end of line.
    lines = list(enumerate(read_bytes(path).split(b"\n"), start=1))
    prompts = [
        parse_prompt(line, f"{path}, line {number}", encode, vocab_size)
        for number, line in lines
        if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"{path}: no prompt in it. Give one a line: {FORMS}.")
    return prompts


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise ConfigError(f"prompts={path}: cannot be read ({error.strerror}).") from error


def parse_prompt(line: bytes, where: str, encode: Encode | None, vocab_size: int) -> list[int]:
    content = prompt_content(parse_json(line, where), where)
    tokens = encode_text(content, where, encode) if isinstance(content, str) else content
    if not tokens:
        raise ConfigError(f"{where}: the prompt is empty. Give it at least 1 token.")
    for token in tokens:
        check_token(token, where, vocab_size)
    return list(tokens)


def parse_json(line: bytes, where: str) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 at byte {error.start} of the line.") from error
    except json.JSONDecodeError as error:
        message = f"{where}, column {error.colno}: not JSON ({error.msg}). Each line is {FORMS}."
        raise ConfigError(message) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: JSON that cannot be read. Each line is {FORMS}.") from error


def prompt_content(value: object, where: str) -> str | list[int]:
    """The text or the ids; other keys of an object are a corpus's own and are passed over."""
    if isinstance(value, dict):
        given = [key for key in ("tokens", "text") if key in value]
        if len(given) != 1:
            raise ConfigError(f'{where}: needs one of "tokens" and "text", has {given or "none"}.')
        expected: type = list if given == ["tokens"] else str
        where, value = f"{where}, {given[0]}", value[given[0]]
        if not isinstance(value, expected):
            raise ConfigError(f"{where}: is {type(value).__name__}, not {expected.__name__}.")
    if not isinstance(value, str | list):
        raise ConfigError(f"{where}: is {type(value).__name__}. Each line is {FORMS}.")
    return value


def encode_text(text: str, where: str, encode: Encode | None) -> list[int]:
    if encode is None:
        raise ConfigError(
            f"{where}: is text, and this checkpoint has no tokenizer. Give token ids instead."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: half a surrogate pair at character {error.start}.") from error
    try:
        return encode(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: is text; {error}") from error


def check_token(token: object, where: str, vocab_size: int) -> None:
    # True is an int to Python, and never a token id.
    if not isinstance(token, int) or isinstance(token, bool):
        raise ConfigError(f"{where}: {token!r} is not a token id. Give integers.")
    if not 0 <= token < vocab_size:
        raise ConfigError(
            f"{where}: id {token} is outside the vocabulary of {vocab_size}. "
            "Give ids of this model's own tokenizer."
        )
