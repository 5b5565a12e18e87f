"""Size expressions and switches."""

from __future__ import annotations

import pytest

from metpipe.circuit import BadCircuit, parse_expr
from metpipe.circuit.dims import holds

DIMS = {"hidden": 64, "n": 3, "top_k": 8, "pool": 4, "tie": 0, "huge": 1 << 40}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hidden", 64),
        ("2*hidden", 128),
        ("2 * hidden + top_k", 136),
        ("n*top_k", 24),
        ("n*top_k/pool", 6),
        ("n/pool*top_k", 0),
        ("hidden/7", 9),
        ("7", 7),
    ],
)
def test_values(text: str, value: int) -> None:
    assert parse_expr(text, "here").value(DIMS, "here") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n*hidden/25*4", 32),  # 192 / 25 = 7.68
        ("hidden/7", 10),
        ("hidden/8", 8),
        ("7/2 + n/2", 6),
        ("2+n*4", 14),
    ],
)
def test_divisions_may_round_up(text: str, value: int) -> None:
    assert parse_expr(text, "here").value(DIMS, "here", round_up=True) == value


def test_an_expression_keeps_its_text_without_blanks() -> None:
    found = parse_expr("2 * hidden + n", "here")
    assert found.text == "2*hidden+n"
    assert found.names == {"hidden", "n"}


@pytest.mark.parametrize(
    "text", ["", "0", "hidden*0", "2**n", "-n", "n+", "Hidden", "n-1", "1.5", "n hidden"]
)
def test_no_size(text: str) -> None:
    with pytest.raises(BadCircuit, match="here"):
        parse_expr(text, "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width", "names the dimension 'width'.*hidden, huge, n"),
        ("huge*huge", "does not fit 64 bits"),
        ("hidden/tie", "divides by tie, which is 0"),
    ],
)
def test_no_value(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=message):
        parse_expr(text, "here").value(DIMS, "here")


def test_switches() -> None:
    assert holds("hidden", DIMS, "here")
    assert not holds("tie", DIMS, "here")
    assert holds("!tie", DIMS, "here")
    with pytest.raises(BadCircuit, match="'!draft' names no dimension"):
        holds("!draft", DIMS, "here")
