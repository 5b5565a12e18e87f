"""Kernel sets: loaded by path, edited and loaded again, refused by name when they are wrong."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from metpipe.engine import kernel_set
from metpipe.engine.kernel_set import load_kernel_set
from metpipe.errors import ConfigError

BUILT_IN = Path(__file__).resolve().parents[2] / "kernels" / "cpu"
PACKAGE = "metpipe_kernels.edited"

TINY = {
    "HARDWARE.toml": (
        'schema = 1\nname = "tiny"\nclass = "cpu"\nkind = "cpu"\nformats = ["bf16"]\n'
        "block_size = 16\n\n[memory]\nunified = true\nline_bytes = 64\n"
    ),
    "FUSIONS.toml": "schema = 1\n",
    "FAMILIES.toml": "schema = 1\n",
    "INVARIANCE.toml": "schema = 1\n",
    "options.py": (
        "from numba import njit\n\n\ndef device(function):\n"
        "    return njit(fastmath=False, cache=True)(function)\n"
    ),
    "constant.py": "FACTOR = 2.0\n",
    "callee.py": (
        "from .constant import FACTOR\nfrom .options import device\n\n\n"
        "@device\ndef scaled(x):\n    return FACTOR * x\n\n\n"
        "@device\ndef other(x):\n    return x\n"
    ),
    "op.py": (
        '"""An op."""\n\nfrom .callee import scaled\nfrom .options import device\n\n\n'
        "@device\ndef _body(x):\n    return scaled(x) + 1.0\n\n\n"
        "def double(*, x):\n    return lambda: _body(x)\n"
    ),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "set"
    made.mkdir()
    for name, text in TINY.items():
        (made / name).write_text(text)
    return made


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def load(folder):
    return load_kernel_set(folder, package=PACKAGE)


def test_a_set_is_loaded_under_its_package_name(folder):
    loaded = load(folder)
    assert loaded.name == "tiny"
    assert loaded.folder == folder
    assert loaded.texts["FUSIONS.toml"] == TINY["FUSIONS.toml"]
    assert set(loaded.functions) == {"op.double", "options.device"}
    assert sys.modules[f"{PACKAGE}.op"].double is loaded.functions["op.double"]
    assert loaded.functions["op.double"](x=3.0)() == 7.0


def test_the_same_files_are_the_same_set(folder):
    assert load(folder) is load(folder)


def test_an_edited_callee_never_runs_stale(folder):
    """In a warm cache, back and forth: numba's own stamp would miss it, for op.py is unchanged."""
    for factor in ("2.0", "5.0", "2.0", "3.0", "5.0"):
        (folder / "constant.py").write_text(f"FACTOR = {factor}\n")
        assert load(folder).functions["op.double"](x=3.0)() == 3.0 * float(factor) + 1.0


def test_code_comes_from_the_cache_the_second_time(folder):
    assert load(folder).functions["op.double"](x=3.0)() == 7.0
    edit(folder / "constant.py", "2.0", "4.0")
    load(folder)
    edit(folder / "constant.py", "4.0", "2.0")
    again = load(folder)
    assert again.functions["op.double"](x=3.0)() == 7.0
    assert sum(sys.modules[f"{PACKAGE}.op"]._body.stats.cache_hits.values()) == 1


def test_an_old_kernel_does_not_write_into_the_new_ones_cache(folder):
    """Compiled late, after the edit: the old code must not be found under the new digest."""
    old = load(folder)
    edit(folder / "constant.py", "2.0", "9.0")
    new = load(folder)
    assert new.cache_dir != old.cache_dir
    assert old.functions["op.double"](x=3.0)() == 7.0
    assert new.functions["op.double"](x=3.0)() == 28.0


DIGEST_MOVES = {
    "callee": ("callee.py", "FACTOR * x", "x * FACTOR"),
    "constant": ("constant.py", "2.0", "2.5"),
    "options": ("options.py", "fastmath=False", "fastmath=True"),
    "own body": ("op.py", "+ 1.0", "+ 2.0"),
}
DIGEST_STAYS = {
    "comment": ("callee.py", "    return FACTOR * x", "    # twice\n    return FACTOR * x"),
    "docstring": ("op.py", '"""An op."""', '"""Another text."""'),
    "unrelated function": ("callee.py", "    return x\n", "    return -x\n"),
    "unrelated constant": ("constant.py", "FACTOR", "OTHER = 1\nFACTOR"),
}


@pytest.mark.parametrize("change", DIGEST_MOVES.values(), ids=DIGEST_MOVES)
def test_a_kernel_digest_moves_with_what_it_runs(folder, change):
    before = load(folder)
    edit(folder / change[0], *change[1:])
    after = load(folder)
    assert before.kernel_digest("op.double") != after.kernel_digest("op.double")


@pytest.mark.parametrize("change", DIGEST_STAYS.values(), ids=DIGEST_STAYS)
def test_a_kernel_digest_stays_with_what_it_does_not_run(folder, change):
    before = load(folder)
    edit(folder / change[0], *change[1:])
    after = load(folder)
    assert before.kernel_digest("op.double") == after.kernel_digest("op.double")
    assert before.digest != after.digest


def test_a_registration_that_nobody_names_is_in_the_digest(folder):
    register = "\n\n@device\ndef _registered(x):\n    return x\n"
    (folder / "callee.py").write_text(TINY["callee.py"] + register)
    before = load(folder)
    edit(folder / "callee.py", "_registered(x):\n    return x", "_registered(x):\n    return -x")
    assert before.kernel_digest("op.double") != load(folder).kernel_digest("op.double")


def test_a_kernel_that_is_not_there_has_no_digest(folder):
    with pytest.raises(ConfigError, match=r"no kernel 'op\.triple'"):
        load(folder).kernel_digest("op.triple")


def test_a_copy_of_a_kernel_has_the_digest_of_the_original(tmp_path):
    """An overlay that changes nothing proves nothing, so it must not look like another kernel."""
    copy = tmp_path / "copy"
    shutil.copytree(BUILT_IN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    original = load_kernel_set(BUILT_IN, package="metpipe_kernels.cpu")
    copied = load(copy)
    for kernel in ("norm.rms_norm", "linear.qkv", "attention.paged_attention"):
        assert copied.kernel_digest(kernel) == original.kernel_digest(kernel)
    edit(copy / "scalar.py", "C2 = 0.4", "C2 = 0.5")
    edited = load(copy)
    moved = {
        kernel: edited.kernel_digest(kernel) != original.kernel_digest(kernel)
        for kernel in ("norm.rms_norm", "linear.gate_up_silu", "attention.paged_attention")
    }
    assert moved == {
        "norm.rms_norm": False,
        "linear.gate_up_silu": True,
        "attention.paged_attention": True,
    }


def test_an_edited_device_function_of_the_real_set_gives_other_bits(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(BUILT_IN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    stream = torch.ones(1, 40, dtype=torch.bfloat16)

    def added():
        y = torch.zeros_like(stream)
        load(copy).functions["residual.residual_add"](stream=stream, delta=stream, y=y)()
        return set(y.flatten().tolist())

    assert added() == {2.0}
    edit(copy / "scalar.py", "    return add(a, b)", "    return add(a, add(b, b))")
    assert added() == {3.0}
    edit(copy / "scalar.py", "    return add(a, add(b, b))", "    return add(a, b)")
    assert added() == {2.0}


def test_an_overlay_calls_the_built_in_set(folder):
    load_kernel_set(BUILT_IN, package="metpipe_kernels.cpu")
    (folder / "mine.py").write_text(
        "from metpipe_kernels.cpu.residual import residual_add\n\n\n"
        "def my_add(*, stream, delta, y):\n"
        "    return residual_add(stream=stream, delta=delta, y=y)\n"
    )
    overlay = load_kernel_set(folder, package="metpipe_kernels.overlay")
    x, y = torch.ones(2, 8, dtype=torch.bfloat16), torch.zeros(2, 8, dtype=torch.bfloat16)
    overlay.functions["mine.my_add"](stream=x, delta=x, y=y)()
    assert bool((y == 2).all())
    assert len(overlay.kernel_digest("mine.my_add")) == 64


def test_an_overlay_is_new_when_the_built_in_set_is(folder, monkeypatch):
    load_kernel_set(BUILT_IN, package="metpipe_kernels.cpu")
    before = load(folder)
    built_in = kernel_set._texts["metpipe_kernels.cpu"]
    edited = {
        **built_in,
        "metpipe_kernels.cpu.scalar": built_in["metpipe_kernels.cpu.scalar"] + "\n",
    }
    monkeypatch.setitem(kernel_set._texts, "metpipe_kernels.cpu", edited)
    after = load(folder)
    assert after is not before
    assert after.cache_dir != before.cache_dir


def test_a_set_that_fails_half_way_leaves_nothing_behind(folder):
    load(folder)
    edit(folder / "op.py", "def double", "raise KeyError\n\n\ndef double")
    with pytest.raises(ConfigError, match="KeyError"):
        load(folder)
    assert not [name for name in sys.modules if name.startswith(PACKAGE)]


BROKEN = {
    "syntax": ("op.py", "def broken(:\n", "op.py:1: not Python"),
    "unknown key": (
        "HARDWARE.toml",
        TINY["HARDWARE.toml"] + "lanes = 4\n",
        "HARDWARE.toml, memory: unknown key 'lanes'",
    ),
    "not toml": ("HARDWARE.toml", "schema = = 1\n", "HARDWARE.toml: not valid TOML"),
    "missing key": ("HARDWARE.toml", "schema = 1\n", "HARDWARE.toml: the key 'kind' is missing"),
    "foreign import": ("op.py", "import math\nimport os\n", "op.py:2: imports os;"),
    "engine import": ("op.py", "from metpipe.errors import Exit\n", "op.py:1: imports metpipe.err"),
    "above the folder": ("op.py", "from ..other import x\n", "imports metpipe_kernels.other"),
    "dynamic import": ("op.py", "import importlib\n", "op.py:1: imports importlib"),
    "raises": ("op.py", "x = 1\n\nraise KeyError('gone')\n", "op.py:3: KeyError: 'gone'"),
    "missing name": ("op.py", "from .callee import nothing\n", "op.py:1: ImportError"),
}


@pytest.mark.parametrize(("name", "text", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_set_is_refused_with_its_file(folder, name, text, says):
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(folder)
    (folder / name).write_text(TINY[name])
    assert load(folder).functions["op.double"](x=1.0)() == 3.0


@pytest.mark.parametrize("name", [name for name in TINY if name.endswith(".toml")])
def test_a_missing_table_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name}: missing"):
        load(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="missing; a kernel set is a folder"):
        load(tmp_path / "nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_is_not_writable_is_said(folder, tmp_path, monkeypatch, caplog):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    monkeypatch.setenv("METPIPE_CACHE", str(closed))
    assert load(folder).functions["op.double"](x=3.0)() == 7.0
    assert "METPIPE_CACHE" in caplog.text


def test_a_cache_path_that_is_a_file_is_said(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "file"))
    assert load(folder).functions["op.double"](x=3.0)() == 7.0
    assert "METPIPE_CACHE" in caplog.text
