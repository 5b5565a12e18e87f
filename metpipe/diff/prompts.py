"""Synthetic prompts from one 64-bit linear congruential generator, the same on every machine.

Ids lie in [64, V - 64), so that the special ids at both ends of a vocabulary are avoided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metpipe.errors import ConfigError

__all__ = ["batch_prompts", "lengths", "prompt_of_len", "prompts", "prompts_of_lengths"]

MASK = 2**64 - 1
# Knuth's MMIX generator: The Art of Computer Programming, volume 2, section 3.3.4.
MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407

SINGLE_SEED = 0x5EED0928
BATCH_SEED = 0xBA7C0928
LENGTH_SEED = 0x5EED1003
LENGTH_SPREAD = 0x9E3779B97F4A7C15

FIRST_ID = 64
"""The lowest id that is generated; as many ids are left out at the top."""


def prompts(num_prompts: int, vocab_size: int) -> list[list[int]]:
    """Prompts of 23, 64, 105, ... ids, all from one stream.

    Raises ConfigError when the vocabulary has no id 64.
    """
    tokens = token_stream(SINGLE_SEED, vocab_size)
    return [take(tokens, length) for length in lengths(num_prompts)]


def lengths(num_prompts: int) -> range:
    """The lengths of `prompts`: 23, 64, 105, ..."""
    return range(23, 23 + 41 * num_prompts, 41)


def batch_prompts(num_prompts: int, vocab_size: int) -> list[list[int]]:
    """Prompts of 12, 19, ... 117 ids, so that a batch's rows sit at different positions.

    Raises ConfigError when the vocabulary has no id 64.
    """
    tokens = token_stream(BATCH_SEED ^ num_prompts, vocab_size)
    return [take(tokens, 12 + 7 * (i % 16)) for i in range(num_prompts)]


def prompt_of_len(length: int, vocab_size: int) -> list[int]:
    """One prompt of exactly `length` ids; no length's prompt is a prefix of another's.

    Raises ConfigError when the length is below 1 or the vocabulary has no id 64.
    """
    if length < 1:
        raise ConfigError(f"prompt length {length}: a prompt has at least 1 token.")
    seed = LENGTH_SEED ^ (length * LENGTH_SPREAD & MASK)
    return take(token_stream(seed, vocab_size), length)


def prompts_of_lengths(lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """One prompt for each of the given lengths, as `prompt_of_len` makes it."""
    return [prompt_of_len(length, vocab_size) for length in lengths]


def token_stream(seed: int, vocab_size: int) -> Iterator[int]:
    if vocab_size <= FIRST_ID:
        raise ConfigError(
            f"vocabulary of {vocab_size} ids: synthetic prompts use ids from {FIRST_ID} upwards. "
            "Give prompts=FILE.jsonl with ids of this vocabulary."
        )
    return generate(seed, max(vocab_size - 2 * FIRST_ID, 1))


def generate(state: int, span: int) -> Iterator[int]:
    while True:
        state = (state * MULTIPLIER + INCREMENT) & MASK
        yield FIRST_ID + (state >> 33) % span


def take(tokens: Iterator[int], count: int) -> list[int]:
    return [next(tokens) for _ in range(count)]
