"""The repository as a whole: the wheel, the README's commands, the layers between the parts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory) -> Path:
    """A wheel, built without network or isolation."""
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(path)


@pytest.fixture(scope="module")
def wheel(wheel_file) -> set[str]:
    """The names inside the wheel."""
    return set(zipfile.ZipFile(wheel_file).namelist())


@pytest.mark.parametrize("folder", ["conf", "kernels", "recipes"])
def test_a_wheel_carries_the_data_folders_inside_the_package(wheel, folder):
    tracked = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    present = [name for name in tracked if (ROOT / name).exists()]
    assert present or not (ROOT / ".git").exists()
    assert {f"metpipe/{name}" for name in present} <= wheel


def test_a_wheel_is_typed_and_holds_no_runs_and_no_tests(wheel):
    assert "metpipe/py.typed" in wheel
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"metpipe"}
    assert not [name for name in wheel if "__pycache__" in name or "/runs/" in name]


@pytest.mark.slow
def test_what_a_wheel_carries_is_enough_to_plan_memory(wheel_file, tmp_path):
    zipfile.ZipFile(wheel_file).extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "metpipe", "pipeline=memory", "hardware=b200"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("PASS  metpipe's engine counted")
    where = [sys.executable, "-c", "import metpipe.resources as r; print(r.conf_dir())"]
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == tmp_path / "site" / "metpipe" / "conf"


def test_a_wheel_has_the_console_script():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"metpipe": "metpipe.app:main"}


def test_the_version_is_the_same_in_both_places():
    from metpipe import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def readme_commands() -> list[str]:
    """The two lines of the README's first block."""
    block = re.search(r"```sh\n(.*?)```", README, re.DOTALL)
    assert block
    return block[1].splitlines()


def test_the_readme_opens_with_two_commands_that_set_up_all_they_need():
    main, tests = readme_commands()
    assert README.index(main) < 400
    assert main.endswith("-m metpipe")
    assert "-m pytest" in tests
    assert all(line.startswith("python3 -m venv .venv && ") for line in (main, tests))


def test_ci_runs_the_readme_s_test_command_to_the_letter():
    _, tests = readme_commands()
    assert tests in [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]


def test_ci_is_a_program_that_bash_can_read():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("name", ["README.md", "recipes/README.md", "docs/config.md"])
def test_every_link_and_recipe_that_is_named_is_there(name):
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    recipes = re.findall(r"recipe=(recipes/\S+?\.(?:toml|yaml))", text)
    missing = [x for x in links if not ((ROOT / name).parent / x).exists()]
    missing += [x for x in recipes if not (ROOT / x).exists()]
    assert missing == []


def test_each_layer_imports_only_what_lies_below_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == 0


def test_no_file_is_so_long_that_nobody_reads_it():
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("metpipe", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
