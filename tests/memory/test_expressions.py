"""The grammar of workspace sizes."""

from __future__ import annotations

import pytest

from metpipe.errors import ConfigError
from metpipe.memory.expressions import evaluate_expression, expression_names

NAMES = {"n": 4, "hidden": 64, "sm_count": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n*hidden*4", 1024),
        ("sm_count*1000", 2000),
        ("n*hidden/32*4", 32),
        ("n*hidden/33", 8),  # 256 / 33 = 7.76, rounded up
        ("7/2", 4),
        ("2+3*4", 14),
        ("2*3+4", 10),
        (" n + hidden ", 68),
        ("5", 5),
    ],
)
def test_values(text, value):
    assert evaluate_expression(text, NAMES, "family x") == value


def test_names_are_disclosed():
    assert expression_names("n*hidden/32+threads*64", "x") == {"n", "hidden", "threads"}


@pytest.mark.parametrize("text", ["", "n*", "*n", "n hidden", "n-1", "(n)", "n**2", "n//2", "3.5"])
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError, match="family x"):
        evaluate_expression(text, NAMES, "family x")


def test_unknown_name_is_refused_and_the_known_are_listed():
    with pytest.raises(ConfigError, match=r"'experts'.*hidden, n, sm_count"):
        evaluate_expression("experts*4", NAMES, "family x")


def test_division_by_zero_is_refused():
    with pytest.raises(ConfigError, match="divides by zero"):
        evaluate_expression("n/zero", {"n": 1, "zero": 0}, "family x")
