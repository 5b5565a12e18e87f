"""Lists, keys and sizes of the diff's modes that do not go together."""

from __future__ import annotations

import pytest

from metpipe.config.mode_rules import unread
from tests.bad_input.lines import has
from tests.runs import composed


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["batch=[2,1]"], ["batch.1: must be at least 2, got 1"]),
        (["verify=1"], ["verify: must be at least 2, got 1"]),
        (["verify_batch=1", "verify_batch_ks=2"], ["verify_batch: must be at least 2, got 1"]),
        (["verify_batch_ks=1", "verify_batch=2"], ["verify_batch_ks: must be at least 2"]),
        (["prefill=0"], ["prefill: must be at least 1, got 0"]),
        (["batch=[]"], ["batch: must hold at least one number"]),
        (["max_width=1", "diff=invariance"], ["max_width: must be at least 2, got 1"]),
        (["max_width=129", "diff=invariance"], ["max_width: must be at most 128, got 129"]),
        (["verify=[2,9]"], ["verify: K=9 is beyond the 8 rows that a sequence may verify"]),
        (
            ["verify_batch_ks=[2,5]", "verify_batch=2"],
            ["verify_batch_ks: K=5 is beyond the 4 rows that a sequence of a batch may verify"],
        ),
        (
            ["verify=[2,4]", "serve.num_drafts=1"],
            ["verify: K=4 verifies 3 drafts, but serve.num_drafts=1", "raise it, lower K"],
        ),
        (
            ["verify_batch_ks=3", "verify_batch=2", "serve.num_drafts=1"],
            ["verify_batch_ks: K=3 verifies 2 drafts, but serve.num_drafts=1"],
        ),
        (["verify_batch=2"], ["verify_batch: needs verify_batch_ks beside it"]),
        (["verify_batch_ks=2"], ["verify_batch_ks: needs verify_batch beside it"]),
        (
            ["verify_batch_ks=null", "diff=verify_batch"],
            ["verify_batch_ks: is null, but verify_batch needs it", "'verify_batch_ks=null'"],
        ),
        (["prefill_chunk=4"], ["prefill_chunk: needs prefill beside it"]),
        (["prefill_chunk=17", "prefill=16"], ["17 splits nothing", "has 16 tokens"]),
        (["prefill_chunk=[4,16]", "prefill=[1,16]"], ["16 splits nothing", "has 16 tokens"]),
        (
            ["ragged=true", "verify_batch=3", "verify_batch_ks=2"],
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
        (
            ["mtp=true", "diff=invariance", "model=tiny_dense"],
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
        (
            ["slots=4", "batch=[2,6]"],
            ["width 6 needs 6 state slots", "slots=6", "4 slots hold 4 sequences"],
        ),
        (
            ["slots=4", "batch=4", "fragment_slots=true"],
            ["width 4, fragmented needs 5 state slots", "4 slots hold 3 sequences"],
        ),
        (
            ["slots=1", "diff=swap"],
            ["swap, own record needs 2 state slots", "1 slot holds no such case"],
        ),
        (["slots=2", "diff=invariance"], ["state slots; set slots=16", "2 slots hold 2 sequences"]),
        (
            ["serve.max_seq_len=40", "batch=3", "steps=16"],
            ["batch, width 3 holds 42 tokens with its 16 steps", "raise it to 42"],
        ),
        (["batch=[3,2,3]"], ["batch: holds 3 more than once; name each number once, got"]),
        (["verify=[2,2]"], ["verify: holds 2 more than once"]),
        (["verify_batch_ks=[3,3]", "verify_batch=2"], ["verify_batch_ks: holds 3 more than once"]),
        (["verify_batch=[2,2]", "verify_batch_ks=2"], ["verify_batch: holds 2 more than once"]),
        (["prefill=[9,9]"], ["prefill: holds 9 more than once"]),
        (["prefill_chunk=[4,4]", "prefill=9"], ["prefill_chunk: holds 4 more than once"]),
        (["prompt_lengths=[9,9]"], ["prompt_lengths: holds 9 more than once"]),
        (
            ["batch=[1000000]"],
            ["batch: 1,000,000 sequences are 1,000,000 rows or more a", "up to 8,192 sequences"],
        ),
        (
            ["verify_batch=4097", "verify_batch_ks=2"],
            ["verify_batch: 4,097 sequences are 8,194 rows or more", "up to 4,096 sequences"],
        ),
        (
            ["verify_batch=4096", "verify_batch_ks=3"],
            ["verify_batch: K=4096 sequences", "has steps of 8,200 rows", "fewer sequences or"],
        ),
        (
            ["prefill=[100000000]"],
            ["prefill: a prompt of 100,000,000 tokens is longer than serve.max_seq_len=4096"],
        ),
        (
            ["serve.max_seq_len=4096", "prefill=4095"],
            ["4095 tokens restored, 37 computed holds 4134 tokens with its 2 steps"],
        ),
        (
            ["serve.max_seq_len=100000000000", "prefill=10000000000"],
            ["serve.max_seq_len=100000000000: block table, rope tables", "GiB are free on this"],
        ),
        (
            ["serve.max_seq_len=4096", "steps=100000000", "batch=2"],
            ["width 2 holds 100000019 tokens", "or lower steps"],
        ),
        (
            ["slots=1000000000"],
            ["slots: 1,000,000,000 state slots and the weights need", "slots would fit"],
        ),
        (
            ["prefill_chunk=[4,16]", "prefill=[4,9]"],
            ["prefill_chunk: 16 splits nothing", "has 9 tokens"],
        ),
        (["prefill_chunk=1", "prefill=1"], ["1 splits nothing", "has 1 token; leave 1 out, or"]),
        (
            ["prefill_chunk=65", "prefill=100", "serve.max_prefill_tokens=64"],
            ["a chunk of 65 would run in narrower passes: serve.max_prefill_tokens=64; raise it"],
        ),
        (
            ["serve.max_prefill_tokens=64", "diff=invariance"],
            ["max_prefill_tokens=64: invariance, alone 15 prefills 117 tokens", "raise it to 117"],
        ),
        (
            ["max_width=8"],
            ["max_width: is read by the mode invariance, but diff.mode is single; add diff="],
        ),
        (["max_width=8", "batch=2"], ["max_width: is read by the mode invariance", "is batch"]),
        (
            ["fragment_slots=true", "diff=all"],
            ["fragment_slots: with diff=all each batch runs without a gap and with one; leave"],
        ),
        (["fragment_slots=false", "diff=all"], ["fragment_slots: with diff=all each batch"]),
        (
            ["batch=8192", "serve.max_seq_len=300000", "steps=200000", "model=tiny_dense"],
            ["batch: width 8192 and the weights need 23", "are free on this", "sequences would"],
        ),
        (["ragged=false", "batch=3"], ["ragged: needs verify_batch beside it"]),
        (
            ["verify_batch=abc", "verify_batch_ks=2"],
            ["verify_batch: must be a whole number or a list of them, got 'abc'"],
        ),
        (["batch=null", "diff=batch"], ["batch: is what the mode batch runs over; give at"]),
        (["batch=null", "diff=all"], ["batch: is what the mode batch runs over; give at"]),
        (["verify=null", "diff=all"], ["verify: is what the mode verify runs over; give at"]),
        (["prefill=null", "diff=all"], ["prefill: is what the mode prefill runs over; give at"]),
        (
            ["verify_batch=null", "diff=all"],
            ["verify_batch: is what the mode verify_batch runs over; give at"],
        ),
        (
            ["verify_batch_ks=null", "diff=all"],
            ["verify_batch_ks: is what the mode verify_batch runs over; give at"],
        ),
        (
            ["batch=null", "prefill=null", "diff=all"],
            ["batch: is what the mode batch runs over, and null like prefill; give each"],
        ),
        (
            ["serve.mtp_max_seqs=2", "verify_batch=5", "verify_batch_ks=2"],
            ["lets 2 sequences verify at once, but verify_batch asks for 5; raise it, lower"],
        ),
        (
            ["serve.mtp_max_seqs=129", "verify_batch=5", "verify_batch_ks=2"],
            ["serve.mtp_max_seqs: must be at most 128, got 129"],
        ),
        (
            ["serve.num_drafts=8", "verify=2"],
            ["serve.num_drafts: must be at most 7, got 8"],
        ),
        (["serve.num_drafts=2", "batch=2"], ["is read with serve.speculative=true, or with a"]),
        (["serve.mtp_max_seqs=9", "verify=2"], ["is read with verify_batch, or with"]),
        (["serve.dflash_gamma=4", "verify=2"], ["is read with serve.dflash=true; add that"]),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)  # fmt: skip
def test_a_mode_s_keys_that_do_not_go_together(refused, lines, parts):
    message = refused("pipeline=diff", "prompts=1", *lines)
    has(message, *parts, f"set by the override '{lines[0]}'")


def test_all_without_the_choice_that_fills_its_lists(refused):
    """Of a run with no list at all, every mode that needs one would be left out without a word."""
    message = refused("diff.mode=all", "model=tiny_dense")
    has(message, "batch: is what the mode batch runs over, and null like verify, verify_batch,")
    has(message, "prefill, verify_batch_ks; give each at least one number, or choose diff=all")


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        (["diff=all", "prefill=8"], "conf/diff/all.yaml (the override 'diff=all')"),
        (["diff=prefill", "prefill=8"], "conf/diff/prefill.yaml (the override 'diff=prefill')"),
        (["diff=verify", "serve.num_drafts=1"], "conf/diff/verify.yaml (the override"),
    ],
)
def test_a_list_that_a_choice_set_is_said_to_be_the_choice_s(refused, lines, source):
    has(refused("pipeline=diff", *lines), f"set by {source}")


@pytest.mark.parametrize(
    "lines",
    [
        ["diff=verify", "verify=null"],
        ["diff=verify_batch", "verify_batch=null"],
        ["diff=batch", "batch=null", "fragment_slots=true"],
        ["diff=prefill", "prefill=null"],
        ["pipeline=memory", "mtp=true"],
        ["prefill=17", "prefill_chunk=99999"],
    ],
    ids=" ".join,
)
def test_what_follows_from_another_problem_is_not_told_as_well(refused, lines):
    refused(*lines, lines=2)


@pytest.mark.parametrize(
    "line",
    [
        *("batch=2", "prompts=3", "state_check=step", "max_width=4", "verify=[2]", "steps=8"),
        *("steps=16", "seed=1", "verify_batch_ks=null", "diff.mode=single"),
    ],
)
def test_what_only_decoding_reads_is_refused_where_nothing_is_decoded(refused, line):
    key = line.partition("=")[0]
    said = f"{key}: is read by the diff, which pipeline=memory leaves out"
    has(refused("pipeline=memory", line), said, f"set by the override '{line}'")


@pytest.mark.parametrize("line", ["diff=all", "diff=auto", "variant=circuit"])
def test_a_choice_that_only_the_diff_reads_is_refused_where_nothing_is_decoded(refused, line):
    group = line.partition("=")[0]
    said = f"{group}: is read by the diff, which pipeline=memory leaves out"
    has(refused("pipeline=memory", line), said, f"(the override '{line}')")


def test_the_seed_is_read_where_a_rule_is_judged():
    assert list(unread(composed("pipeline=rule", "rule=x", "seed=3"), {"seed"})) == []


def test_a_prefill_wider_than_every_rule_names_the_flag_that_bounds_it(refused):
    wide = "serve.max_prefill_tokens=20000"
    long = ("serve.max_seq_len=20000", "prompt_lengths=9000", "pipeline=diff")
    message = refused(wide, *long)
    has(message, "serve.max_prefill_tokens: ", "9,000 rows", "at most 8,192")
    has(message, "set serve.max_prefill_tokens=8192", f"set by the override '{wide}'")
