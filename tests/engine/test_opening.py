"""What is refused before a model is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.opening import circuit_of, open_model, shapes_of_config
from metpipe.errors import ConfigError
from tests.engine.opened import CONFIG, SIZES, opened


def test_pools_beyond_this_machine_s_memory_are_refused_with_what_they_need():
    # 10^9 blocks of 16 tokens, keys and values of 2 layers, 24 elements of 2 bytes
    with pytest.raises(ConfigError, match=r"weights and KV pools of small: need 2861\.02 GiB"):
        opened(blocks=10**9)


def test_so_are_tables_for_a_sequence_that_no_machine_holds():
    # 10^12 tokens: 64 rows of 62.5 * 10^9 block numbers, and 12 angles a token
    with pytest.raises(ConfigError, match=r"serve\.max_seq_len=10{12}: .* need 372529\.\d\d GiB"):
        opened(max_seq_len=10**12)


def test_a_family_that_only_plans_know_is_refused_before_its_weights_are_read():
    circuit = replace(circuit_of(CONFIG, "config.json"), arch="nemotron_h")
    checkpoint = open_checkpoint(
        ModelSource(name="hybrid", config=CONFIG), shapes_of=shapes_of_config
    )
    with pytest.raises(ConfigError, match=r"the family nemotron_h is not executed .*dense_gqa"):
        open_model(checkpoint, circuit, open_kernel_sets("cpu", None), SIZES)
