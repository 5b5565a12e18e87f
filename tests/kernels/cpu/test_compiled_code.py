"""What was compiled: no fast-math flag, no library maths, one place that compiles."""

from __future__ import annotations

import importlib
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from numba import njit
from numba.core.dispatcher import Dispatcher

from metpipe.engine.kernel_set import load_kernel_set
from tests.kernels.cpu.chain import run_chain
from tests.kernels.cpu.conftest import FOLDER

PACKAGE = "metpipe_kernels.inspected"
FLAG = re.compile(
    r"= (?:tail |musttail |notail )?(?:f\w+|call|select|phi) (?:[\w.]+ )*?"
    r"(?:fast|reassoc|contract|nnan|ninf|nsz|arcp|afn)\b"
)
UNSAFE = re.compile(r'"(?:unsafe-fp-math|no-nans-fp-math|no-infs-fp-math)"="true"')
LIBRARY = re.compile(r"@(?:exp|exp2|log|pow|sin|cos|tanh|sqrt|fma|rsqrt)f?\(|__svml")


def fast_math(text: str) -> list[str]:
    """Lines of LLVM text that allow other bits."""
    return [line for line in text.splitlines() if FLAG.search(line) or UNSAFE.search(line)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Function name -> LLVM text, of a copy of the set compiled from nothing.

    Code that comes from a cache has no text, and text of nothing shows nothing.
    """
    folder = tmp_path_factory.mktemp("set") / "cpu"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METPIPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        loaded = load_kernel_set(folder, package=PACKAGE)
    run_chain(loaded.functions, "normal")
    hashes = importlib.import_module(f"{PACKAGE}.hash")
    hashes.hash128(np.zeros(3))
    hashes.hash128_rows(
        pool=torch.zeros(16, 8, dtype=torch.bfloat16),
        block_table=torch.zeros(1, dtype=torch.int32),
        count=3,
        block_size=16,
    )
    hashes.hash128_spans(addresses=np.zeros(1, dtype=np.int64), sizes=np.zeros(1, dtype=np.int64))
    importlib.import_module(f"{PACKAGE}.scalar").sigmoid(np.float32(1.0))
    loaded.functions["environment.check_environment"]()
    loaded.functions["team.together"]([_an_add(loaded)])()
    texts = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(f"{PACKAGE}."):
            continue
        for attribute, value in vars(module).items():
            if isinstance(value, Dispatcher) and value.py_func.__module__ == name:
                texts[f"{name}.{attribute}"] = "\n".join(value.inspect_llvm().values())
    return texts


def _an_add(loaded):
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    return loaded.functions["residual.residual_add"](stream=x, delta=x, y=torch.empty_like(x))


def test_the_check_sees_a_planted_flag():
    @njit(fastmath=True)
    def planted(x, y):
        return x * y + x

    @njit(fastmath={"contract"})
    def contracted(x, y):
        return x * y + x

    @njit(fastmath=False)
    def clean(x, y):
        return x * y + x

    for function, flagged in ((planted, True), (contracted, True), (clean, False)):
        function(1.0, 2.0)
        text = "\n".join(function.inspect_llvm().values())
        assert bool(fast_math(text)) is flagged


def test_no_compiled_function_has_a_fast_math_flag(compiled):
    kernels = [name for name in compiled if name.rpartition(".")[2].startswith("_")]
    assert len(kernels) > 15
    assert "llvm.fma.v16f32" in compiled[f"{PACKAGE}.linear._linear"]
    missing = {name for name, text in compiled.items() if "define" not in text}
    assert not missing, "not compiled, so nothing is shown of them"
    for name, text in compiled.items():
        assert fast_math(text) == [], name


def test_no_compiled_function_calls_a_maths_library(compiled):
    for name, text in compiled.items():
        assert LIBRARY.findall(text) == [], name


def test_functions_are_compiled_in_one_place_only():
    """Where the options stand. Elsewhere a forgotten fastmath would be inherited from a caller."""
    for path in FOLDER.glob("*.py"):
        text = path.read_text()
        found = re.findall(
            r"\b(?:njit|jit|vectorize|guvectorize|cfunc|stencil)\b *\(|@\w*jit", text
        )
        assert (found != []) == (path.name == "jit.py"), path.name


def test_options_are_said(module):
    options = module("linear")._linear.targetoptions
    assert options["fastmath"] is False
    assert options["error_model"] == "numpy"
    assert options["nogil"] is True
