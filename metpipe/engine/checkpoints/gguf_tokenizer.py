"""The byte-level BPE tokenizer that a gguf carries in tokenizer.ggml.*.

The file names its splitting of text into words (`tokenizer.ggml.pre`) but doesn't hold it. The
patterns are those that the model families' own tokenizer.json state; `default` is llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metpipe.engine.checkpoints.tokenizer import TextTokenizer
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

__all__ = ["gguf_tokenizer"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a family cuts text: patterns, each applied to the pieces that the one before left."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A word that is a token is taken whole, without merging (tokenizers' ignore_merges)."""
    composes: bool = False
    """Text is brought to Unicode NFC first."""
    adds_bos: bool = False
    """Unless tokenizer.ggml.add_bos_token says otherwise."""


SPLITTINGS = {
    "default": Splitting((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "smollm": Splitting((r"\p{N}", GPT2)),
    "qwen2": Splitting((LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),), composes=True),
    "llama-bpe": Splitting((LLAMA3,), whole_words=True, adds_bos=True),
}


def gguf_tokenizer(path: Path, metadata: Mapping[str, object]) -> TextTokenizer | None:
    """The tokenizer, or None when the file has none. ConfigError when it can't be rebuilt."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        return None
    if kind != "gpt2":
        raise _refusal(path, f"its tokenizer is of kind {kind!r}, not byte-level BPE (gpt2)")
    splitting = SPLITTINGS.get(str(metadata.get("tokenizer.ggml.pre")))
    if splitting is None:
        named = metadata.get("tokenizer.ggml.pre")
        raise _refusal(path, f"its pre-tokenizer {named!r} isn't one of {', '.join(SPLITTINGS)}")
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    try:
        pipeline = _pipeline(splitting, tokens, _strings(path, metadata, "tokenizer.ggml.merges"))
    except Exception as error:  # the library raises nothing narrower
        raise _refusal(path, f"the tokenizers library refuses its tokens ({error})") from error
    pipeline.add_tokens(_added(tokens, metadata.get("tokenizer.ggml.token_type")))
    ends = _ends(path, metadata, tokens, splitting)
    if ends is not None:
        pipeline.post_processor = ends
    return TextTokenizer(pipeline)


def _refusal(path: Path, cause: str) -> ConfigError:
    return ConfigError(
        f"{path}: {cause}, so prompts can't be given as text with it; give token ids, or use the "
        "model's safetensors folder with its tokenizer.json"
    )


def _strings(path: Path, metadata: Mapping[str, object], key: str) -> list[str]:
    found = metadata.get(key)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise _refusal(path, f"{key} isn't a list of strings")
    return found


def _pipeline(splitting: Splitting, tokens: list[str], merges: list[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import NFC
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = BPE(vocab=vocabulary, merges=pairs, ignore_merges=splitting.whole_words)
    pipeline = Tokenizer(model)
    if splitting.composes:
        pipeline.normalizer = NFC()
    splits = [Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = Sequence([*splits, to_bytes])
    return pipeline


def _added(tokens: list[str], types: object) -> list[AddedToken]:
    """Tokens that text may spell out whole: <|im_start|> and the like."""
    from tokenizers import AddedToken

    if not isinstance(types, list):
        return []
    return [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _ends(
    path: Path, metadata: Mapping[str, object], tokens: list[str], splitting: Splitting
) -> TemplateProcessing | None:
    """Puts BOS before and EOS behind the text, where the file wants them."""
    from tokenizers.processors import TemplateProcessing

    bos = _end_token(path, metadata, tokens, "bos", default=splitting.adds_bos)
    eos = _end_token(path, metadata, tokens, "eos", default=False)
    if not bos and not eos:
        return None
    template = [token for token, _ in bos] + ["$A"] + [token for token, _ in eos]
    return TemplateProcessing(single=template, special_tokens=bos + eos)


def _end_token(
    path: Path, metadata: Mapping[str, object], tokens: list[str], end: str, *, default: bool
) -> list[tuple[str, int]]:
    """[(token, id)] of the token that the file wants at this end, or []."""
    if not metadata.get(f"tokenizer.ggml.add_{end}_token", default):
        return []
    index = metadata.get(f"tokenizer.ggml.{end}_token_id")
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise _refusal(path, f"it wants a token {end} added, but its {end}_token_id is {index!r}")
    return [(tokens[index], index)]
