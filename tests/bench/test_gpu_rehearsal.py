"""`make gpu` without a GPU, on a copy of the project, in a Python that has torch, Triton and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bare_python import bare_python, repacked
from gpu_examination.bundle import requirements
from gpu_examination.steps import gpu_steps

ROOT = Path(__file__).parents[2]
STEPS = [step.name for step in gpu_steps(Path(), Path())]
# Takes the place of compute-sanitizer: leaves out its options, each with a value, and runs the rest.
SANITIZER = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift 2; done\nexec "$@"\n'


def copy_tree(folder: Path) -> None:
    """Copies what a checkout has: no build products, and no environment."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("git does not list the files of this tree")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


class Rehearsal:
    """The results of one run."""

    def __init__(self, folder: Path) -> None:
        tree, tools = folder / "tree", folder / "tools"
        copy_tree(tree)
        repacked(requirements(), folder / "bundle")
        shutil.copy(tree / "pyproject.toml", folder)
        (folder / "bundle/requirements.txt").write_text("\n".join(requirements()))
        tools.mkdir()
        (tools / "compute-sanitizer").write_text(SANITIZER)
        (tools / "compute-sanitizer").chmod(0o755)
        python = bare_python(folder / "bare")
        self.environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self.lacked = not self._runs(python, "import msgspec")
        command = [str(python), "-m", "gpu_examination", "--rehearsal", "--bundle", str(folder / "bundle")]
        command += ["--results", str(folder / "results"), "--work", str(folder / "work")]
        environment = self.environment | {"PYTHONPATH": str(tree / "bench")}
        self.ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        (results,) = (folder / "results/rehearsal").glob("*.jsonl")
        self.log = results.with_suffix(".log").read_text()
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in results.read_text().splitlines()]

    def of(self, step: str) -> dict[str, dict[str, Any]]:
        """Returns the results of a step by name."""
        return {line["name"]: line for line in self.lines if line["step"] == step and "name" in line}

    def _runs(self, python: Path, program: str) -> bool:
        command = [str(python), "-c", program]
        return not subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Rehearsal]:
    """Yields a rehearsal outside of /tmp, which its tests have for themselves."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pagetier-gpu-") as folder:
        yield Rehearsal(Path(folder))


def test_each_step_ends_well(rehearsal: Rehearsal) -> None:
    outcomes = {line["step"]: line["outcome"] for line in rehearsal.lines if "outcome" in line and "name" not in line}
    assert outcomes == dict.fromkeys(STEPS, "done"), rehearsal.log
    assert rehearsal.ended.returncode == 0 and rehearsal.ended.stderr == ""


def test_what_is_missing_comes_from_the_bundle(rehearsal: Rehearsal) -> None:
    found = {line["value"].partition("==")[0] for line in rehearsal.lines if line.get("name") == "installed"}
    assert rehearsal.lacked and {"lmdb", "msgspec", "posix_ipc", "pytest", "pytest-xdist"} <= found
    assert not found & {"torch", "triton", "pip"}


def test_every_gpu_test_can_be_imported_there(rehearsal: Rehearsal) -> None:
    """They are skipped, and so are those under the sanitizer, which are fewer."""
    for step, least in (("tests", 200), ("sanitizer", 10)):
        outcomes = [line["outcome"].partition(" ")[0] for line in rehearsal.of(step).values()]
        assert len(outcomes) >= least and set(outcomes) == {"skipped"}


def test_a_loaded_prompt_gives_the_logits_of_a_computed_one(rehearsal: Rehearsal) -> None:
    logits = rehearsal.of("engine")["logits_equal_graphs_off"]
    assert (logits["value"], logits["verdict"]) == (1.0, "goal met")


@pytest.mark.parametrize("step", ["copy", "engine", "process_death", "kernels"])
def test_each_number_has_a_verdict_if_it_has_a_goal(rehearsal: Rehearsal, step: str) -> None:
    for result in rehearsal.of(step).values():
        assert bool(result["verdict"]) == (result["goal"] != "reported")
        assert result["verdict"] in rehearsal.ended.stdout


def test_thresholds_are_measured_for_the_engine(rehearsal: Rehearsal) -> None:
    (calibrated,) = (line for line in rehearsal.lines if "thresholds" in line)
    assert calibrated["device"] == "simulated GPU 0" and "/work/config/pagetier/" in rehearsal.log
