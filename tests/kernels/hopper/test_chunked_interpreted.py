"""The chunked delta rule in Triton's interpreter: its algorithm, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILE = "tests/kernels/hopper/test_chunked.py"
CHOSEN = (
    "test_it_is_near_the_rule_in_float64[65-(2, 4, 26, 22)]",
    "test_it_is_near_the_rule_in_float64[130-(1, 2, 128, 128)]",
    "test_a_row_that_is_a_little_off_is_not_near",
    "test_rows_of_several_slots_in_any_order[6]",
    "test_no_slot_at_all_is_nan_and_changes_no_state",
    "test_cut_at_multiples_of_64_it_has_the_same_bits[mixed-(64,)-(2, 4, 26, 22)]",
    "test_cut_elsewhere_it_is_near_still",
    "test_a_row_s_bits_do_not_hang_on_rows_behind_it[(1, 3, 7, 19)]",
    "test_a_sequence_s_bits_do_not_hang_on_others_beside_it",
    "test_wider_keys_than_fit_are_refused",
)
"""Some of each kind: all of them take many minutes."""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton, whose interpreter runs it, is absent",
)
def test_its_tests_hold_in_the_interpreter():
    """In a process of its own: what Triton interprets is settled when it is imported."""
    chosen = [f"{FILE}::{name}" for name in CHOSEN]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
