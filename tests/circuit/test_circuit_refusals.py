"""Circuit TOML is read strictly: what is misspelt, missing or unfit is refused by name."""

from __future__ import annotations

import pytest

from metpipe.circuit import BadCircuit
from tests.circuit.hybrid_toml import HYBRID, PARTS, made, replaced


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (replaced("schema = 1", "schema = 2"), "schema 2 is not known"),
        (replaced("prologue", "prolog"), "unknown key 'prolog'"),
        (replaced('arch = "hybrid"\n', ""), "'arch' is missing"),
        (replaced('include = ["parts"]', 'include = ["bits"]'), "no blocks/bits.toml"),
        (HYBRID + "[block.ffn]", r"block ffn: the block is defined in blocks/parts\.toml"),
        (HYBRID + "[block.spare]", "the block spare is used nowhere"),
        (replaced('prologue = ["embed"]', 'prologue = ["embed", "no"]'), "no block is named 'no'"),
        (replaced('kind = "interval"', 'kind = "random"'), "'random' is not one of"),
        (replaced("period = 2\n", ""), "'period' is missing"),
        (replaced('"n x hidden"', '"n, hidden"'), "must be written `rows x dim`"),
        (replaced('"n x hidden"', '"top_k x hidden"'), "mention neither n"),
        (replaced('"n x hidden"', '"n x width"'), "names the dimension 'width'"),
        (replaced('"n x hidden"', '"n x 0*hidden"'), "holds a zero"),
        (replaced('op = "embed"', 'op = "embedding"'), "unknown op 'embedding'"),
        (replaced("in = []", "inputs = []"), "node embed: .*'in' is missing"),
        (replaced('draft_module = "mtp"\n', ""), "the draft block 'mtp_in' has no module"),
        (replaced('in = ["h"]', 'in = ["x"]'), "the edge 'x' is written by no earlier node"),
        (replaced('draft_when = "mtp"', 'draft_when = "nextn"'), "'nextn' names no dimension"),
        (replaced('count = "dense_layers"', 'count = "first_k"'), "count names 'first_k'"),
        (replaced('binding = ["lm_head"]', 'binding = ["{L}.lm_head"]'), "needs a layer's module"),
        (replaced('"hidden", "vocab"', '"hidden", "vocab", "inter"'), "lacks the dim 'inter'"),
        (replaced('buffer = "logits" }]', 'buffer = "logits" }, 3]'), "holds 3"),
        (replaced('stream_out = "x"', 'stream_out = "z"'), "the edge 'z'"),
        (replaced("blocks.full_attention =", "blocks.full ="), "no layer kind 'full'"),
    ],
)  # fmt: skip
def test_an_architecture_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=message):
        made(text)


def parts(old: str, new: str) -> str:
    return replaced(old, new, PARTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parts('description = "mixer, experts, feed-forward"', ""), "'description' is missing"),
        (parts('in = ["c"]', 'in = ["c", "x"]'), "must read one edge and write one"),
        (parts('{ edge = "cn", format = "f32"', '{ edge = "cn", format = "bf16"'), "left out"),
        (parts('{ edge = "cn"', '{ edge = "c"'), "the edge 'c' is written twice"),
        (parts("binding_rows = [", "binding_rows = [\"hidden\", "), "give 40 rows|zip"),
        (parts('"heads x head_dim x head_dim"', '"heads x depth"'), "'depth'"),
        (parts('id = "prefix_h"', 'id = "h"'), "state h: it is declared twice"),
        (parts('state = { h = "update" }', 'state = { s = "update" }'), "no state 's'"),
        (parts('state = { h = "update" }', 'state = { h = "erase" }'), "may not erase"),
        (parts('verify = "h_steps"\n', ""), "recurrent states"),
        (parts('of = "h"', 'of = "conv"'), "copies l0.mixer.conv"),
        (parts('id = "top_k"', 'id = "router"'), "2 nodes are named l1.moe.router"),
        (parts('in = ["u", "w"]', 'in = ["u"]'), "reads 1 edges"),
        (parts('when = "!gate"', 'when = "!gates"'), "names no dimension"),
        (parts('tensor = [{ id = "taps"', 'tensor = [{ name = "taps"'), "'id' is missing"),
        (parts("bias = true", "bias = 3"), "bias must be a string"),
    ],
)  # fmt: skip
def test_a_library_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=message):
        made(parts=text)


def test_a_param_that_nothing_fills_is_named() -> None:
    with pytest.raises(BadCircuit, match=r"node norm: the param '\{theta\}' names"):
        made(parts=parts('scope = "{scope}"', 'scope = "{theta}"'), mtp=0)


def test_modules_that_share_no_equal_rows_must_state_them() -> None:
    unstated = parts('binding_rows = ["3*heads*head_dim", "heads*head_dim"]\n', "")
    made(parts=unstated)  # 32 rows in equal halves
    with pytest.raises(BadCircuit, match="state binding_rows"):
        made(parts=unstated.replace("n x 4*heads*head_dim", "n x 3*heads + 3"))


def test_a_node_may_read_an_edge_twice() -> None:
    circuit = made(parts=parts('in = ["x", "o"]', 'in = ["o", "o"]'))
    assert len(circuit.edges["l0.mixer.o"].consumers) == 1


def test_a_head_needs_a_stream() -> None:
    with pytest.raises(BadCircuit, match="no earlier block wrote a stream"):
        made(replaced('prologue = ["embed"]', 'prologue = ["head", "embed"]'))
