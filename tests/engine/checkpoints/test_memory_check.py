"""Whether the weights fit is asked before they are read, and a container's limit counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from metpipe.engine.checkpoints import (
    check_memory,
    free_memory,
    machine_memory,
    required_memory,
)
from metpipe.engine.checkpoints.memory_check import cgroup_headroom, cgroup_limit
from metpipe.errors import ConfigError

GIB = 1 << 30


def _group(folder: Path, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")


def _membership(root: Path, text: str) -> Path:
    (root / "membership").write_text(text)
    return root / "membership"


def test_required_memory_counts_bf16() -> None:
    assert required_memory({"a.weight": (3, 5), "b.bias": (7,)}) == 2 * (15 + 7)


def test_more_than_is_free_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metpipe.engine.checkpoints.memory_check.free_memory", lambda: 3 * GIB)
    check_memory(3 * GIB)
    with pytest.raises(ConfigError, match=r"the weights: need 3\.50 GiB, but 3\.00 GiB are"):
        check_memory(7 * GIB // 2)


def test_free_memory_is_a_number_of_this_machine() -> None:
    assert 0 < free_memory() < 1 << 50


def test_the_tightest_group_above_the_process_decides(tmp_path: Path) -> None:
    _group(tmp_path / "pod", str(10 * GIB), 9 * GIB)
    _group(tmp_path / "pod" / "box", str(8 * GIB), 5 * GIB)
    member = _membership(tmp_path, "0::/pod/box\n")
    assert cgroup_headroom(tmp_path, member) == GIB


def test_file_cache_of_the_group_can_be_had_back(tmp_path: Path) -> None:
    _group(tmp_path, str(8 * GIB), 7 * GIB, cached=2 * GIB)
    assert cgroup_headroom(tmp_path, _membership(tmp_path, "0::/\n")) == 3 * GIB


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    _group(tmp_path, str(4 * GIB), GIB)
    member = _membership(tmp_path, "0::/kubepods/pod7/box\n")
    assert cgroup_headroom(tmp_path, member) == 3 * GIB


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    _group(tmp_path, "max", GIB)
    assert cgroup_headroom(tmp_path, _membership(tmp_path, "0::/\n")) is None
    assert cgroup_headroom(tmp_path / "none", tmp_path / "nowhere") is None


def test_version_one_groups_count_too(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{6 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{4 * GIB}\n")
    (folder / "memory.stat").write_text(f"cache 5\ntotal_inactive_file {GIB}\n")
    member = _membership(tmp_path, "9:pids:/box\n4:memory:/box\n0::/\n")
    assert cgroup_headroom(tmp_path, member) == 3 * GIB


def test_the_tightest_limit_is_what_a_machine_has(tmp_path: Path) -> None:
    _group(tmp_path / "pod", str(10 * GIB), 9 * GIB)
    _group(tmp_path / "pod" / "box", "max", 5 * GIB)
    member = _membership(tmp_path, "0::/pod/box\n")
    assert cgroup_limit(tmp_path, member) == 10 * GIB


def test_no_limit_is_none(tmp_path: Path) -> None:
    _group(tmp_path, "max", GIB)
    assert cgroup_limit(tmp_path, _membership(tmp_path, "0::/\n")) is None
    assert cgroup_limit(tmp_path, tmp_path / "no such file") is None


def test_machine_memory_is_at_least_what_is_free() -> None:
    assert free_memory() <= machine_memory()
