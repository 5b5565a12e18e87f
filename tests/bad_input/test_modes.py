"""Lists, keys and sizes of the diff's modes that do not go together."""

from __future__ import annotations

import pytest

from tests.bad_input.lines import has


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["batch=[2,1]"], ["batch.1: must be at least 2, got 1"]),
        (["verify=1"], ["verify.0: must be at least 2, got 1"]),
        (["verify_batch=1", "verify_batch_ks=2"], ["verify_batch.0: must be at least 2, got 1"]),
        (["verify_batch_ks=1", "verify_batch=2"], ["verify_batch_ks.0: must be at least 2"]),
        (["prefill=0"], ["prefill.0: must be at least 1, got 0"]),
        (["batch=[]"], ["batch: must hold at least one number"]),
        (["max_width=1", "diff=invariance"], ["max_width: must be at least 2, got 1"]),
        (["max_width=129", "diff=invariance"], ["max_width: must be at most 128, got 129"]),
        (["verify=[2,9]"], ["verify: K=9 is beyond the 8 rows that a sequence may verify"]),
        (
            ["verify_batch_ks=[2,5]", "verify_batch=2"],
            ["verify_batch_ks: K=5 is beyond the 4 rows that a sequence of a batch may verify"],
        ),
        (["verify_batch=2"], ["verify_batch: needs verify_batch_ks beside it"]),
        (["verify_batch_ks=2"], ["verify_batch_ks: needs verify_batch beside it"]),
        (["prefill_chunk=4"], ["prefill_chunk: needs prefill beside it"]),
        (["prefill_chunk=17", "prefill=16"], ["17 splits nothing", "has 16 tokens"]),
        (["prefill_chunk=[4,16]", "prefill=[1,16]"], ["16 splits nothing", "has 16 tokens"]),
        (
            ["ragged=true", "verify_batch=3", "verify_batch_ks=[2,2]"],
            ["ragged: mixes widths: give verify_batch_ks at least two different Ks"],
        ),
        (
            ["ragged=true", "verify_batch=[5,2]", "verify_batch_ks=[2,3,4]"],
            ["ragged: gives each of the 3 Ks a sequence: verify_batch must be at least 3"],
        ),
        (["ragged=true", "batch=3"], ["ragged: needs verify_batch beside it"]),
        (["mtp=true", "batch=3"], ["mtp: needs verify or verify_batch beside it"]),
        (["mtp=auto", "prefill=3"], ["mtp: needs verify or verify_batch beside it"]),
        (
            ["mtp=true", "verify=2", "model=tiny_dense"],
            ["mtp=true: the config of", "declares no draft head", "leave mtp out"],
        ),
        (["fragment_slots=true"], ["fragment_slots: needs batch or verify_batch beside it"]),
        (["fragment_slots=true", "verify=2"], ["fragment_slots: needs batch or verify_batch"]),
        (["verify=2", "batch=2"], ["batch and verify ask for different modes", "run twice"]),
        (
            ["verify=2", "batch=2", "prefill=3"],
            ["batch and verify and prefill ask for different modes"],
        ),
        (["batch=2", "diff=swap"], ["batch: is read by the mode batch, but diff.mode is swap"]),
        (["batch=2", "diff=verify"], ["batch: is read by the mode batch", "diff.mode is verify"]),
        (["prefill=2", "diff=single"], ["prefill: is read by the mode prefill", "is single"]),
        (["steps=3", "diff=swap"], ["steps: the mode swap", "at least 4, got 3"]),
        (["steps=3", "diff=all"], ["steps: the mode swap", "at least 4, got 3"]),
        (
            ["prompt_lengths=20", "batch=2"],
            ["is read by the modes single and verify; batch makes prompts of its own"],
        ),
        (["slots=4", "batch=[2,6]"], ["width 6 needs 6 state slots", "slots=6", "4 hold 4 seq"]),
        (
            ["slots=4", "batch=4", "fragment_slots=true"],
            ["width 4, fragmented needs 5 state slots", "4 hold 3 sequences"],
        ),
        (["slots=1", "diff=swap"], ["swap, own record needs 2 state slots", "hold no such case"]),
        (["slots=2", "diff=invariance"], ["state slots; set slots=16", "2 hold 2 sequences"]),
        (
            ["serve.max_seq_len=40", "batch=3", "steps=16"],
            ["batch, width 3 holds 42 tokens with its 16 steps", "raise it to 42"],
        ),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)  # fmt: skip
def test_a_mode_s_keys_that_do_not_go_together(refused, lines, parts):
    message = refused("pipeline=diff", "prompts=1", *lines)
    has(message, *parts, f"set by the override '{lines[0]}'")


def test_a_prefill_wider_than_every_rule_names_the_flag_that_bounds_it(refused):
    wide = "serve.max_prefill_tokens=20000"
    long = ("serve.max_seq_len=20000", "prompt_lengths=9000", "pipeline=diff")
    message = refused(wide, *long)
    has(message, "serve.max_prefill_tokens: ", "9,000 rows", "at most 8,192")
    has(message, "set serve.max_prefill_tokens=8192", f"set by the override '{wide}'")
