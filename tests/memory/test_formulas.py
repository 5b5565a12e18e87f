"""Each formula against arithmetic done by hand."""

from __future__ import annotations

import pytest

from metpipe.circuit import padded_rows
from metpipe.errors import ConfigError
from metpipe.memory import formulas


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [(1, 1), (15, 1), (16, 2), (17, 2), (31, 2), (32, 3), (1152, 73)],
)
@pytest.mark.parametrize("sequences", [1, 8, 128])
def test_a_sequence_has_room_for_its_next_token_and_the_pool_a_dummy(tokens, blocks, sequences):
    assert formulas.kv_blocks(sequences, tokens, 16) == sequences * blocks + 1


def test_block_size_zero_is_refused():
    with pytest.raises(ConfigError, match=r"serve\.block_size"):
        formulas.kv_blocks(1, 1, 0)


def test_kv_pool_of_one_layer():
    # 2 blocks x 16 tokens x 8 heads x 128 x 2 bytes
    assert formulas.kv_bytes(2, 16, 8 * 128, 2) == 65536


def test_recurrent_pool_has_a_dummy_slot():
    assert formulas.recurrent_bytes(4, 10, 4) == 5 * 10 * 4


def test_weights_are_two_bytes_an_element():
    assert formulas.weight_bytes([(3, 5), (7,)]) == (15 + 7) * 2


@pytest.mark.parametrize(
    ("sequences", "rows"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 12), (13, 16), (17, 24), (25, 32), (33, 48),
     (49, 64), (65, 96), (97, 128), (128, 128), (129, 129), (300, 300)],
)  # fmt: skip
def test_batches_are_padded_to_the_ladder(sequences, rows):
    assert padded_rows(sequences) == rows


@pytest.mark.parametrize(("isl", "rows"), [(1, 1), (4096, 4096), (8192, 8192), (9000, 8192)])
def test_prefill_is_a_prompt_or_a_chunk(isl, rows):
    assert formulas.prefill_rows(isl, 8192) == rows


def test_rope_tables_are_cosine_and_sine_in_f32():
    # 2 tables x 40960 positions x 64 pairs x 4 bytes = 20 MiB
    assert formulas.rope_table_bytes(40960, 128) == 20 * 2**20


@pytest.mark.parametrize(("max_seq_len", "width"), [(1, 2), (16, 2), (17, 3), (40960, 2561)])
def test_block_table_covers_the_longest_sequence_and_its_next_block(max_seq_len, width):
    assert formulas.block_table_width(max_seq_len, 16) == width


def test_step_inputs_are_i32():
    # 3 rows x (token, position, slot, snapshot + 3 blocks) x 4 bytes
    assert formulas.step_input_bytes(3, 17, 16) == 3 * (4 + 3) * 4


@pytest.mark.parametrize(
    ("device", "budget"),
    [
        (85_469_849_190, 72_649_371_811),
        (150_753_352_089, 128_140_349_275),
        (192_307_160_678, 163_461_086_576),
        (288_407_053_926, 245_145_995_837),
        (130_674_379_980, 111_073_222_983),
        (130_663_886_848, 111_064_303_820),
    ],
)
def test_budget_is_the_floor_of_the_share(device, budget):
    assert formulas.budget_bytes(device, 0.85) == budget


def test_driver_is_a_fixed_part_and_a_share_of_the_budget():
    assert formulas.driver_bytes(1_000_000, 1000, 10) == 1000 + 1000 * 10
    assert formulas.driver_bytes(1_000_000, 1000, 10, chunk_slack=7) == 11_007
    # gb10 at its exact size: 1024 MiB, and floor(111064303820 / 1000) x 21 = 2332350363 - 0
    driver = formulas.driver_bytes(111_064_303_820, 1_073_741_824, 21)
    assert driver == 1_073_741_824 + 111_064_303 * 21
    assert (driver - 2**30) // 2**20 == 2224


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("f16", 2), ("bf16", 2), ("fp8", 1)])
def test_element_sizes(dtype, size):
    assert formulas.element_bytes(dtype, "serve.kv_cache_dtype") == size


@pytest.mark.parametrize("dtype", ["nvfp4", "turbo", ""])
def test_a_dtype_without_a_size_is_refused_by_name(dtype):
    with pytest.raises(ConfigError, match=r"serve\.kv_cache_dtype.*f32, f16, bf16, fp8"):
        formulas.element_bytes(dtype, "serve.kv_cache_dtype")
