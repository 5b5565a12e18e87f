"""Text prompts: the tokenizer that comes with the weights, rebuilt for a gguf."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from metpipe.engine.checkpoints import ModelSource, open_checkpoint, require_tokenizer, synthetic
from metpipe.engine.checkpoints.gguf_file import GgufFile, open_gguf
from metpipe.engine.checkpoints.gguf_tokenizer import SPLITTINGS
from metpipe.errors import ConfigError

from .models import gguf_writer, weights, write_folder, write_gguf

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3", "123 4", "' s", "Ġ Ġ"]
SPECIAL = ["<|begin|>", "<|end|>", "<tool>"]
TOKENS = [*BYTES, *(merge.replace(" ", "") for merge in MERGES), "unmerged", *SPECIAL]
TYPES = [1] * (len(TOKENS) - 3) + [3, 3, 4]
IDS = {token: index for index, token in enumerate(TOKENS)}

SENTENCES = [
    "",
    "hello hello's 1234 x",
    "It's  two   spaces\tand\n\na break \r\n",
    "def f(x):\n    return x**2 - 12345.678  # =>",
    "Grüße, 你好, नमस्ते, e\u0301 and \u00e9, 👩‍👩‍👧",
    "<|im_start|>user\nHi<|im_end|>\n",
    "I'LL NEVER don't ANYTHING 'Ve",
]


def _gguf(path: Path, pre: str | None, *, kind: str = "gpt2", **flags: bool) -> GgufFile:
    writer = gguf_writer(path, "qwen2")
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(IDS["<|begin|>"])
    writer.add_eos_token_id(IDS["<|end|>"])
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    return open_gguf(write_gguf(path, "qwen2", weights("qwen2", tied=True), writer=writer))


def _pieces(opened: GgufFile, text: str) -> list[str]:
    return [TOKENS[index] for index in require_tokenizer(opened).encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["hello", "'s", "Ġ", "1", "2", "3", "4"]),
        ("qwen2", ["hello", "'s", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", ["<|begin|>", "hello", "'s", "Ġ", "123", "4"]),
        ("default", ["hello", "'", "s", "Ġ", "123", "4"]),
    ],
)
def test_each_family_splits_text_its_own_way(tmp_path: Path, pre: str, expected: list[str]) -> None:
    assert _pieces(_gguf(tmp_path / "model.gguf", pre), "hello's 1234") == expected


def test_every_known_splitting_has_a_case() -> None:
    assert set(SPLITTINGS) == {"smollm", "qwen2", "llama-bpe", "default"}


def test_special_tokens_in_the_text_are_taken_whole(tmp_path: Path) -> None:
    opened = _gguf(tmp_path / "model.gguf", "smollm")
    assert _pieces(opened, "<|begin|>hello<tool><|end|>") == [
        "<|begin|>",
        "hello",
        "<tool>",
        "<|end|>",
    ]


def test_the_file_says_which_tokens_are_added(tmp_path: Path) -> None:
    both = _gguf(tmp_path / "a.gguf", "smollm", add_bos_token=True, add_eos_token=True)
    assert _pieces(both, "hello") == ["<|begin|>", "hello", "<|end|>"]
    neither = _gguf(tmp_path / "b.gguf", "llama-bpe", add_bos_token=False)
    assert _pieces(neither, "hello") == ["hello"]


def test_llama_takes_a_word_whole_that_no_merge_makes(tmp_path: Path) -> None:
    assert _pieces(_gguf(tmp_path / "a.gguf", "llama-bpe"), "unmerged")[1:] == ["unmerged"]
    assert _pieces(_gguf(tmp_path / "b.gguf", "smollm"), "unmerged") == list("unmerged")


def test_qwen2_composes_characters_first(tmp_path: Path) -> None:
    qwen2 = require_tokenizer(_gguf(tmp_path / "a.gguf", "qwen2"))
    smollm = require_tokenizer(_gguf(tmp_path / "b.gguf", "smollm"))
    assert qwen2.encode("e\u0301") == qwen2.encode("\u00e9")
    assert smollm.encode("e\u0301") != smollm.encode("\u00e9")


@pytest.mark.parametrize(
    ("pre", "kind", "message"),
    [
        ("deepseek-llm", "gpt2", "its pre-tokenizer 'deepseek-llm' isn't one of"),
        (None, "gpt2", "its pre-tokenizer None isn't one of"),
        ("default", "llama", "its tokenizer is of kind 'llama'"),
    ],
)
def test_an_unknown_tokenizer_refuses_text_only(
    tmp_path: Path, pre: str | None, kind: str, message: str
) -> None:
    opened = _gguf(tmp_path / "model.gguf", pre, kind=kind)
    assert opened.has_weights
    with pytest.raises(ConfigError, match=f"{message}.*can't be given as text.*token ids"):
        opened.tokenizer()


def test_merges_of_unknown_tokens_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_merges", lambda *_: None)
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.merges isn't a list of strings"):
        _gguf(tmp_path / "model.gguf", "smollm").tokenizer()


def test_a_bos_that_is_not_stated_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_bos_token_id", lambda *_: None)
    with pytest.raises(ConfigError, match="wants a token bos added, but its bos_token_id is None"):
        _gguf(tmp_path / "model.gguf", "llama-bpe").tokenizer()


def test_a_gguf_without_tokens_has_no_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "qwen2", weights("qwen2", tied=True))
    assert open_gguf(path).tokenizer() is None


def test_transformers_encodes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `oracle` isn't installed")
    # Its rebuilt pipeline is plain GPT-2's, so that the sentences are those where they agree.
    opened = _gguf(tmp_path / "model.gguf", "smollm")
    other = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    mine = require_tokenizer(opened)
    for sentence in ("hello hello's x", " hello\nhe  ll\t<|end|>", "Grüße, 你好 👩‍👩‍👧"):
        assert mine.encode(sentence) == other.encode(sentence), sentence


@pytest.mark.slow
def test_smollm2_encodes_as_transformers_does(smollm2: GgufFile) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `oracle` isn't installed")
    other = transformers.AutoTokenizer.from_pretrained(
        smollm2.path.parent, gguf_file=smollm2.path.name
    )
    mine = require_tokenizer(smollm2)
    for sentence in SENTENCES:
        assert mine.encode(sentence) == other.encode(sentence), sentence


def test_folder_uses_its_tokenizer_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(2)})
    words = models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
    pipeline = Tokenizer(words)
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    pipeline.save(str(folder / "tokenizer.json"))
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    assert require_tokenizer(opened).encode("world hello you") == [1, 0, 2]


def test_broken_tokenizer_json_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"a.weight": torch.ones(2)})
    (folder / "tokenizer.json").write_text("{}")
    opened = open_checkpoint(ModelSource("any", checkpoint=str(folder)))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: the tokenizers library can't read it"):
        opened.tokenizer()


def test_text_for_a_model_without_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"comes without a tokenizer.*give token ids"):
        require_tokenizer(synthetic({}, {"a.weight": (2,)}, 0))
