"""Which kernel set a machine executes with."""

from __future__ import annotations

import pytest

from metpipe.engine.gpu import Gpu
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.set_choice import SetChoice, choose_set
from metpipe.errors import ConfigError


def gpu(capability: str) -> Gpu:
    return Gpu("Some GPU", capability, 1 << 37, 132, "13.0")


def test_a_machine_without_a_gpu_runs_the_cpu_set():
    assert choose_set("auto", None, strict=True) == SetChoice("cpu", proven=True)
    assert choose_set("cpu", gpu("9.0"), strict=True) == SetChoice("cpu", proven=True)


def test_a_gpu_of_a_known_class_runs_its_set():
    for device in ("auto", "cuda"):
        assert choose_set(device, gpu("9.0"), strict=True) == SetChoice("hopper", proven=True)


def test_a_newer_gpu_runs_the_nearest_set_as_unproven_or_is_refused():
    assert choose_set("auto", gpu("10.3"), strict=False) == SetChoice("hopper", proven=False)
    with pytest.raises(ConfigError, match=r"^hardware.strict=true: .*Some GPU.*10\.3.*hopper"):
        choose_set("cuda", gpu("10.3"), strict=True)


def test_an_older_gpu_is_not_run():
    assert choose_set("auto", gpu("7.5"), strict=False) == SetChoice("cpu", proven=True)
    with pytest.raises(ConfigError, match=r"^device=cuda: no kernel set reaches down to Some GPU"):
        choose_set("cuda", gpu("7.5"), strict=False)


def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"^device=cuda: torch sees no NVIDIA GPU"):
        choose_set("cuda", None, strict=False)


@pytest.mark.gpu
def test_auto_is_the_gpu():
    sets = open_kernel_sets("auto", None)
    assert sets.device.type == "cuda"


def test_an_inherited_set_has_its_own_hardware_and_the_other_s_kernels(tmp_path):
    from metpipe.engine.kernel_set import load_kernel_set
    from metpipe.resources import kernels_dir

    for name in ("base", "newer"):
        (tmp_path / name).mkdir()
    table = (kernels_dir() / "cpu" / "HARDWARE.toml").read_text()
    for file in ("FUSIONS.toml", "FAMILIES.toml"):
        (tmp_path / "base" / file).write_text("schema = 1\n")
    (tmp_path / "base" / "INVARIANCE.toml").write_text("schema = 1\n")
    (tmp_path / "base" / "op.py").write_text("def twice(*, x):\n    return 2 * x\n")
    (tmp_path / "base" / "HARDWARE.toml").write_text(table)
    newer = table.replace('name = "cpu"', 'name = "newer"\ninherits = "base"')
    (tmp_path / "newer" / "HARDWARE.toml").write_text(newer)
    package = "metpipe_kernels.newer"
    loaded = load_kernel_set(tmp_path / "newer", package=package, on=package)
    assert loaded.name == "newer"
    assert loaded.functions["op.twice"](x=3) == 6
