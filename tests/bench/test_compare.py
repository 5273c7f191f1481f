"""Compares a copy of the project with itself and with a slowed one, as `make compare` does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import compare as comparing
from compare import compare, run_round
from comparison.commit_build import Build, CannotCompareError
from comparison.measured_side import Report
from own_git import commit_all, git_environ

ROOT = Path(__file__).parents[2]
PACKAGES = ("shm", "tiers", "kernels", "client", "daemon")
COPIED = (
    *PACKAGES,
    "src",
    "systemd",
    "docs",
    "bench",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
)
IGNORED = shutil.ignore_patterns("__pycache__", "build", "results")
SIZES = {"BENCH_ENTRIES": "30000", "BENCH_TURNS": "5"}
SLOWED = """
_match = Client.match


def _slowed(self, keys):
    sum(range(2000))
    return _match(self, keys)


Client.match = _slowed
"""


class Project:
    """A copy of the project in a git repository of its own, with one commit, and with a built C core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=IGNORED)
            else:
                shutil.copy(ROOT / name, folder)
        (folder / ".gitignore").write_text("*.so\n.cache/\n__pycache__/\n")
        commit_all(folder)

    def compare(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.folder / "bench/compare.py"), *words]
        environment = git_environ() | SIZES | {"COLUMNS": "120"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def imports_of_commit(self) -> Path:
        program = "from comparison.commit_build import build; print(build('HEAD').imports)"
        command = [sys.executable, "-c", program]
        environment = git_environ() | {"PYTHONPATH": str(self.folder / "bench")}
        return Path(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def slower(output: str) -> set[str]:
    return {line.split("  ")[1] for line in output.splitlines() if line.rstrip().endswith(" slower")}


def test_a_commit_is_not_slower_than_itself(project: Project) -> None:
    """An interval of 95 % is wrong now and then, but not twice for the same operation."""
    run = project.compare("HEAD", "--rounds", "6")
    found = slower(run.stdout)
    assert "match 1 page, hit, CPU" in run.stdout and run.returncode == (1 if found else 0), run.stderr
    if found:
        assert found & slower(project.compare("HEAD", "--rounds", "6").stdout) == set()


def test_a_slowed_copy_is_slower(project: Project) -> None:
    api = project.folder / "client/__init__.py"
    text = api.read_text()
    try:
        api.write_text(text + SLOWED)
        run = project.compare("HEAD", "--rounds", "6")
    finally:
        api.write_text(text)
    assert run.returncode == 1 and " with changes over " in run.stdout
    found = slower(run.stdout)
    assert {"match 1 page, hit, clock", "match 1 page, hit, CPU", "match 1 page, miss, CPU"} <= found
    assert not any(name.startswith("hash") for name in found)


def test_each_side_imports_its_own_files(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SIZES.items():
        monkeypatch.setenv(name, value)
    sides = {each: each.resolve() / "pagetier" for each in (project.imports_of_commit(), ROOT / "src")}
    reports = run_round("lookup", *(Build(str(imports), imports) for imports in sides))
    for package, report in zip(sides.values(), reports, strict=True):
        expected = {str(package / "client/__init__.py"), str((package / "shm/_core.abi3.so").resolve())}
        assert expected <= set(report.files)
    assert {Path(file).resolve() for file in reports[0].files}.isdisjoint(
        Path(file).resolve() for file in reports[1].files
    )


def test_files_of_another_build_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without `__init__.py` gives way to the installed one."""
    for name, value in SIZES.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(ROOT / "src/pagetier", tmp_path / "pagetier", ignore=shutil.ignore_patterns("__init__.py"))
    with pytest.raises(CannotCompareError, match="used files of another build"):
        run_round("lookup", Build("namespace", tmp_path), Build("tree", ROOT / "src"))


def test_a_commit_that_lacks_an_operation_is_not_called_slower(project: Project) -> None:
    api = project.folder / "client/__init__.py"
    text = api.read_text()
    try:
        api.write_text(text + "\ndel Client.match\n")
        run = project.compare("HEAD", "--rounds", "6")
    finally:
        api.write_text(text)
    assert run.returncode == 2 and "lookup cannot run with" in run.stderr and "AttributeError" in run.stderr


def test_settings_reach_the_daemons_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIER_EVICT_POLICY", "cadence")
    monkeypatch.setenv("PAGETIER_NAME", "other")
    monkeypatch.setattr(sys, "argv", ["compare.py", "HEAD", "--rounds", "6", "--set", "evict.policy=lru"])
    monkeypatch.setattr(comparing, "build", lambda commit: Build(commit, Path("before")))
    monkeypatch.setattr(comparing, "working_tree", lambda: Build("after", Path("after")))
    sides: set[Build] = set()

    def measured(bench: str, *builds: Build) -> tuple[Report, Report]:
        sides.update(builds)
        return Report({bench: [1.0]}, []), Report({bench: [1.0]}, [])

    monkeypatch.setattr(comparing, "run_round", measured)
    assert comparing.main() == 0
    environments = [side.environment() for side in sides]
    assert [each.get("PAGETIER_EVICT_POLICY") for each in environments] == ["lru", "lru"]
    assert not any("PAGETIER_NAME" in each for each in environments)


def test_no_round_begins_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, now = Build("before", Path("before")), Build("after", Path("after")), [0.0]

    def measured(bench: str, *_: Build) -> tuple[Report, Report]:
        now[0] += 10.0
        return Report({bench: [1.0]}, []), Report({bench: [1.0]}, [])

    monkeypatch.setattr(comparing, "run_round", measured)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert len(compare("lookup", before, after, 9, ends=55.0)["lookup"].ratios) == 6
    assert "lookup: round 6 of 9, 10 s\n" in capsys.readouterr().err
    with pytest.raises(CannotCompareError, match="lookup: 5 rounds in this time, and 6 are needed"):
        compare("lookup", before, after, 9, ends=now[0] + 50.0)


def test_the_sides_begin_alternately(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Build("before", Path("before")), Build("after", Path("after"))
    began: list[str] = []

    def measured(bench: str, first: Build, second: Build) -> tuple[Report, Report]:
        began.append(first.name)
        seconds = {before: [1.0, 2.0, 3.0], after: [2.0, 4.0, 6.0]}
        reports = (Report({bench: seconds[side]}, []) for side in (first, second))
        return next(reports), next(reports)

    monkeypatch.setattr(comparing, "run_round", measured)
    found = compare("lookup", before, after, 4)
    assert began == ["before", "after", "before", "after"]
    assert (found["lookup"].before, found["lookup"].after) == ([2.0] * 4, [4.0] * 4)
    assert found["lookup"].ratios == [2.0] * 4
