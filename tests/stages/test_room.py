"""What does not fit this machine is refused with the number that would."""

from __future__ import annotations

import re

import pytest

from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.errors import ConfigError
from metpipe.stages import room
from metpipe.stages.live import Live
from metpipe.stages.refusals import check
from tests.runs import composed

MIB = 1 << 20


def live_of(*overrides: str) -> Live:
    run = composed("pipeline=diff", "model=tiny_dense", "steps=4", *overrides)
    return Live(run, open_kernel_sets("cpu", None))


@pytest.fixture
def free(monkeypatch):
    """Pretends that so much memory is free, of a machine that has it all."""

    def pretend(num_bytes: int) -> None:
        monkeypatch.setattr(room, "free_on", lambda _: num_bytes)
        monkeypatch.setattr(room, "machine_memory", lambda: num_bytes)

    return pretend


@pytest.mark.parametrize(
    ("shape", "key", "noun"),
    [
        ("batch={}", "batch", "sequences"),
        ("verify_batch={} verify_batch_ks=2", "verify_batch", "sequences"),
        ("prefill={}", "prefill", "tokens"),
        ("prompt_lengths={} prompts=1", "prompt_lengths", "tokens"),
        ("slots={}", "slots", "slots"),
    ],
    ids=lambda value: value.partition("=")[0],
)
def test_the_number_that_would_fit_does_and_the_next_does_not(free, shape, key, noun):
    free(12 * MIB)
    with pytest.raises(ConfigError, match=f"^{key}: .* the weights need .*; about ") as refused:
        check(live_of(*shape.format(3000).split()))
    fitting = re.search(rf"about ([\d,]+) {noun} would fit$", str(refused.value))
    assert fitting is not None, refused.value
    number = int(fitting[1].replace(",", ""))
    assert 1 < number < 3000
    # behind a prompt of that length tokens are decoded, and its restored prefix lies beside it
    held = number // 2 - 80 if noun == "tokens" else number
    check(live_of(*shape.format(held).split()))
    with pytest.raises(ConfigError, match=f"^{key}: "):
        check(live_of(*shape.format(number + 1).split()))


def test_a_model_that_does_not_fit_at_all_is_told_so(monkeypatch, free):
    free(1)
    monkeypatch.setattr("metpipe.engine.checkpoints.memory_check.free_memory", lambda: 1)
    with pytest.raises(ConfigError, match=r"^weights and KV pools of tiny_dense: need .* GiB"):
        check(live_of("batch=2"))
