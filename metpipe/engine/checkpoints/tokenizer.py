"""Text to token ids by the `tokenizers` library, for prompts that are given as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metpipe.engine.checkpoints.protocol import Checkpoint
from metpipe.engine.checkpoints.protocol import Tokenizer as TokenizerProtocol
from metpipe.errors import ConfigError
from metpipe.file_kind import kind_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TextTokenizer", "require_tokenizer", "tokenizer_from_file"]


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A pipeline of the `tokenizers` library behind the one call that prompts need."""

    pipeline: Tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with the special tokens that the model's own post-processor adds."""
        return list(self.pipeline.encode(text).ids)


def tokenizer_from_file(file: Path) -> TextTokenizer:
    """The tokenizer of a tokenizer.json. ConfigError when the library can't read it."""
    from tokenizers import Tokenizer

    if found := kind_of(file):
        raise ConfigError(f"{file}: {found}, and only a file is read; fetch the file again")
    try:
        return TextTokenizer(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"{file}: the tokenizers library can't read it ({error}); fetch the file again, or "
            "give the prompts as token ids"
        ) from error


def require_tokenizer(checkpoint: Checkpoint) -> TokenizerProtocol:
    """The checkpoint's tokenizer. ConfigError when it has none, since text prompts need one."""
    found = checkpoint.tokenizer()
    if found is None:
        raise ConfigError(
            f"{checkpoint.source}: comes without a tokenizer, so prompts can't be given as text; "
            "give token ids (prompts=N, or a .jsonl of ids), or add tokenizer.json to the folder"
        )
    return found
