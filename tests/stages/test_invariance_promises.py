"""Which legs of the invariance table are judged: by axis, by lever, by where passes are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from metpipe.engine.promises import TRIED
from metpipe.resources import kernels_dir
from metpipe.stages.invariance.plan import MAKERS
from metpipe.stages.invariance.promises import is_promised, promised_axes
from metpipe.stages.invariance.table import Table, alone

ARCH, LEVER = "qwen3_5", "chunked_prefill"


def kernels(text: str) -> SimpleNamespace:
    return SimpleNamespace(folder=Path("set"), texts={"INVARIANCE.toml": "schema = 1\n" + text})


def said(axis: str, *, bitwise: bool = True, **more: object) -> str:
    lines = [
        f"bitwise = {str(bitwise).lower()}",
        *(f"{key} = {val!r}" for key, val in more.items()),
    ]
    head = f'[[promise]]\narch = "{ARCH}"\naxis = "{axis}"\ntext = "a"\nwhy = "b"\n'
    return head + "\n".join(lines) + "\n"


def axes(builtin: str, overlay: str | None = None, *levers: str) -> dict[str, int]:
    sets = SimpleNamespace(
        builtin=kernels(builtin), overlay=None if overlay is None else kernels(overlay)
    )
    return dict(promised_axes(sets, ARCH, overlay=overlay is not None, levers=levers))


@pytest.fixture(scope="module")
def chunk_legs():
    """The legs of the axis `prefill_chunks`, named by where they are cut."""
    table = Table.of(2, 4, 1000, drafts=True)
    tokens = [[0] * alone(table, p).steps for p in range(table.num_alone)]
    made = [replace(leg, axis="prefill_chunks") for leg in MAKERS["prefill_chunks"](table, tokens)]
    return {leg.case.name: leg for leg in made}


def test_a_lever_narrows_what_is_promised_without_it():
    text = said("width") + said("prefill_chunks")
    text += said("prefill_chunks", lever="l", multiple_of=64)
    text += said("width", lever="m", bitwise=False)
    assert axes(text) == {"width": 1, "prefill_chunks": 1}
    assert axes(text, None, "other") == axes(text)
    assert axes(text, None, "l") == {"width": 1, "prefill_chunks": 64}
    assert axes(text, None, "l", "m") == {"prefill_chunks": 64}


def test_two_levers_must_both_hold():
    text = said("prefill_chunks") + said("prefill_chunks", lever="l", multiple_of=64)
    text += said("prefill_chunks", lever="m", multiple_of=48)
    assert axes(text, None, "l", "m") == {"prefill_chunks": 192}


def test_a_lever_gives_nothing_that_is_not_promised_without_it():
    text = said("width", bitwise=False) + said("width", lever="l")
    assert axes(text, None, "l") == {}


def test_a_folder_takes_back_what_the_built_in_set_says():
    text = said("prefill_chunks") + said("prefill_chunks", lever="l", multiple_of=64)
    taken = said("prefill_chunks", bitwise=False)
    assert axes(text, taken, "l") == axes(text, taken) == {}
    coarser = said("prefill_chunks", lever="l", multiple_of=128)
    assert axes(text, coarser, "l") == {"prefill_chunks": 128}
    assert axes(text, coarser) == {"prefill_chunks": 1}


def test_legs_cut_at_multiples_are_judged_and_the_others_are_not(chunk_legs):
    def judged(multiple: int) -> set[str]:
        promised = {"prefill_chunks": multiple}
        return {name for name, leg in chunk_legs.items() if is_promised(promised, leg)}

    assert judged(1) == set(chunk_legs)
    assert judged(64) == {"chunks of 64", "restored 64"}
    assert judged(16) == {"chunks of 16", "chunks of 64", "restored 64"}
    assert not any(is_promised({"width": 1}, leg) for leg in chunk_legs.values())


def test_the_gpu_set_s_chunked_prefill_is_promised_at_64_and_is_not_decode():
    text = (kernels_dir() / "hopper" / "INVARIANCE.toml").read_text()
    text = text.replace("schema = 1", "", 1)
    everything = dict.fromkeys(TRIED, 1)
    assert axes(text) == everything
    del everything["prefill_decode"]
    assert axes(text, None, LEVER) == everything | {"prefill_chunks": 64}
