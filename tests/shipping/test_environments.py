"""The environments that clones share, made by the real program from small recipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from eventually import eventually
from installed_wheel import run

_PATIENCE_S = 120
ROOT = Path(__file__).parents[2]
# The first recipe runs pagetier: its packages are those of this environment. The others are folders.
PROGRAM = """
import sys
sys.path.insert(0, ".ci")
from environment_recipes import RECIPES, Recipe, Step
import environments
RECIPES["engine"] = lambda: Recipe((
    Step(': $PIP $DEPENDENCIES; rm -rf "$SITE"/setuptools*; echo "$PACKAGES" > "$SITE/packages.pth"'),
    Step('echo once >> "$LOG"')), ())
RECIPES["slow"] = lambda: Recipe(
    (Step('test ! -e "$FOLDER/left"; touch "$FOLDER/left"; read line < "$LOG"; touch "$FOLDER/all"'),), ())
RECIPES["partial"] = lambda: Recipe((
    Step('touch "$FOLDER/part"'),
    Step('echo "no route" >&2; grep -q registry "$LOG" && touch "$FOLDER/more"', "More")), ("README.md",))
RECIPES["broken"] = lambda: Recipe((Step("echo no route to the registry >&2; exit 4"),), ())
sys.exit(environments.main(*sys.argv[1:]))
"""


class Clone:
    """A clone of this repository, made of links, on a machine whose shared environments are in `machine`."""

    def __init__(self, machine: Path, name: str, programs: ExitStack) -> None:
        self.folder, self._machine, self._programs = machine / name, machine, programs
        self.log = machine / "log"
        self.folder.mkdir()
        for path in ROOT.iterdir():
            if path.name not in {".git", ".engines", ".venv"}:
                (self.folder / path.name).symlink_to(path)

    def start(self, command: str, *names: str) -> subprocess.Popen[str]:
        """Starts the program."""
        environ = os.environ | {"XDG_CACHE_HOME": str(self._machine), "LOG": str(self.log)}
        environ["PACKAGES"] = sysconfig.get_path("purelib")
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, command, *names], cwd=self.folder, env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._programs.callback(_end, program)
        return program

    def run(self, command: str, *names: str) -> str:
        """Runs the program and returns its output."""
        return said(self.start(command, *names))

    def layer(self, name: str) -> Path:
        return self.folder / ".engines" / name

    def shared(self) -> list[Path]:
        return sorted(path for path in (self._machine / "pagetier/environments").glob("*") if path.is_dir())


def _end(program: subprocess.Popen[str]) -> None:
    """Kills what a failed test leaves: the program and its steps."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.communicate()


@pytest.fixture
def clones(tmp_path: Path) -> Iterator[tuple[Clone, Clone]]:
    """Yields two clones on one machine."""
    with ExitStack() as programs:
        yield Clone(tmp_path, "first", programs), Clone(tmp_path, "second", programs)


def said(program: subprocess.Popen[str]) -> str:
    """Returns the output of a program that ended."""
    output = program.communicate(timeout=_PATIENCE_S)[0]
    return f"{output}status {program.returncode}"


def test_two_clones_share_what_one_of_them_makes_and_each_runs_its_own_pagetier(
    clones: tuple[Clone, Clone], tmp_path: Path
) -> None:
    outputs = [said(program) for program in [clone.start("make", "engine") for clone in clones]]
    assert all(output.endswith("status 0") for output in outputs), outputs
    assert clones[0].log.read_text() == "once\n"
    for clone in clones:
        programs = clone.layer("engine") / "bin"
        where = run(programs / "python", "-c", "import pagetier; print(pagetier.__file__)", cwd=tmp_path)
        assert where == f"{clone.folder}/src/pagetier/__init__.py\n"
        points = "import importlib.metadata as m; print([e.name for e in m.entry_points(group='vllm.general_plugins')])"
        assert run(programs / "python", "-c", points, cwd=tmp_path) == "['pagetier']\n"
        assert "usage" in run(programs / "pagetierd", "--help", cwd=tmp_path).lower()


def test_a_build_that_was_killed_is_never_taken_for_a_whole_one(clones: tuple[Clone, Clone]) -> None:
    clone, other = clones
    os.mkfifo(clone.log)
    with clone.log.open("r+b", buffering=0) as log:
        _kill_a_build_and_make_another(clone, other, log)
    assert not clone.layer("slow").exists()
    assert (other.layer("slow") / "all").exists()


def _kill_a_build_and_make_another(clone: Clone, other: Clone, log: BinaryIO) -> None:
    killed = clone.start("make", "slow")
    assert eventually(lambda: any((folder / "left").exists() for folder in clone.shared()))
    killed.send_signal(signal.SIGKILL)
    waiting = other.start("make", "slow")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "== slow: another process is making it\n"  # the step of the killed one lives
    log.write(b"\n")  # it ends
    log.write(b"\n")  # and so does that of the second build
    assert said(waiting).endswith("status 0")


def test_only_a_part_that_could_not_be_had_is_tried_again_by_the_next_clone(clones: tuple[Clone, Clone]) -> None:
    first, second = clones
    first.log.write_text("nothing")
    output = first.run("make", "partial")
    assert "no More here" in output and "no route" in output and output.endswith("status 0")
    first.log.write_text("registry")
    (first.layer("partial") / "part").resolve().write_text("kept")
    assert second.run("make", "partial") == "status 0"
    assert (second.layer("partial") / "part").read_text() == "kept"
    assert (second.layer("partial") / "more").exists()


def test_a_failed_environment_says_what_was_tried(clones: tuple[Clone, Clone]) -> None:
    output = clones[0].run("make", "broken")
    assert "the environment broken cannot be made: status 4 of `echo no route" in output
    assert "    no route to the registry\n" in output and output.endswith("status 1")


def test_a_cache_that_cannot_be_written_is_named(clones: tuple[Clone, Clone], tmp_path: Path) -> None:
    (tmp_path / "pagetier").write_text("a file")
    output = clones[0].run("make", "partial")
    assert f"cannot be kept in {tmp_path}/pagetier/environments: " in output
    assert "Traceback" not in output and output.endswith("Set XDG_CACHE_HOME\nstatus 1")


def test_other_requirements_make_another_environment_and_the_old_one_is_removed_on_demand(
    clones: tuple[Clone, Clone],
) -> None:
    clone = clones[0]
    clone.log.write_text("registry")
    clone.run("make", "partial")
    (old,) = clone.shared()
    (clone.folder / "README.md").unlink()
    (clone.folder / "README.md").write_text("other requirements")
    assert clone.run("make", "partial").endswith("status 0")
    assert old in clone.shared() and len(clone.shared()) == 2
    assert clone.run("old", "partial") == f"of other requirements (make clean-environments removes it): {old}\nstatus 0"
    assert clone.run("remove", "partial").endswith("status 0")
    assert old not in clone.shared() and len(clone.shared()) == 1
