"""Blocks that a load asks of the paged pools (section 18)."""

from __future__ import annotations

from metpipe.memory import formulas

__all__ = ["DRAFT_BLOCK", "draft_blocks", "main_blocks"]

DRAFT_BLOCK = 16
"""Tokens of a block of the draft head's cache."""


def main_blocks(concurrency: int, tokens: int, tree_nodes: int, block_size: int) -> int:
    """The target's: each sequence's tokens, a tree's nodes and its next token; and a dummy."""
    return formulas.kv_blocks(concurrency, tokens + tree_nodes, block_size)


def draft_blocks(tokens: int, blocks: int, dispatch_cap: int) -> int:
    """The draft head's, for as many sequences as may verify at once; `blocks` are the target's."""
    each = tokens // DRAFT_BLOCK + 1
    return min(each * dispatch_cap, max(blocks, each))
