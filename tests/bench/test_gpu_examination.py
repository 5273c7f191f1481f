"""The script of the GPU examination: results survive, no step keeps the next ones from running, all end in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventually import eventually, pace
from gpu_examination import bundle
from gpu_examination.runner import ResultsFile, run
from gpu_examination.steps import ROOT, Step, gpu_steps, gpu_tests, rehearsal_steps
from measure import REPORTED, Goal, at_least, at_most
from process_states import is_alive

PLENTY_S = 60
# Prints a result and starts a process that would outlive it, whose ID is the result's value.
HANGS = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(json.dumps({"name": "child", "value": child.pid}), flush=True)
time.sleep(60)
"""


class StepTime:
    """The time of steps: a step that sleeps has used all of its time once it has done what comes before."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: Callable[[], bool] = lambda: True

    def wait(self, process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        """Stands in for Popen.wait()."""
        assert isinstance(process.args, Sequence)
        if timeout is None or "sleep(60)" not in str(process.args[-1]):
            return _really_wait(process, timeout)
        assert eventually(self.sleeps)
        self.now += timeout
        raise subprocess.TimeoutExpired(process.args, timeout)

    def sleep(self, seconds: float) -> None:
        """Stands in for time.sleep()."""
        self.now += seconds
        pace()


_really_wait = subprocess.Popen.wait


@pytest.fixture
def step_time(monkeypatch: pytest.MonkeyPatch) -> StepTime:
    """Returns the time of the runner and of its steps."""
    passing = StepTime()
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process, timeout=None: passing.wait(process, timeout))
    clock = SimpleNamespace(monotonic=lambda: passing.now, sleep=passing.sleep)
    monkeypatch.setattr("gpu_examination.runner.time", clock)
    return passing


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets steps run that have little time left."""
    monkeypatch.setattr("gpu_examination.runner._LEAST_S", 0.1)


def python(name: str, program: str, seconds: int = PLENTY_S, **options: Any) -> Step:
    return Step(name, seconds, (sys.executable, "-c", program), **options)


def results_of(folder: Path, *steps: Step, seconds: float = 10 * PLENTY_S) -> list[dict[str, Any]]:
    """Returns the lines of the results file after the steps."""
    run(steps, ResultsFile(folder / "device/now.jsonl"), os.environ, seconds)
    return [json.loads(line) for line in (folder / "device/now.jsonl").read_text().splitlines()]


def test_objects_are_results_and_all_other_output_is_logged(tmp_path: Path) -> None:
    program = """print('{"name": "a", "value": 1}\\nnot a result\\n{no object\\n{"name": "b"}\\n[1]')"""
    *lines, outcome = results_of(tmp_path, python("step", program))
    assert lines == [{"step": "step", "name": "a", "value": 1}, {"step": "step", "name": "b"}]
    assert outcome["outcome"] == "done"
    assert (tmp_path / "device/now.log").read_text() == "== step\nnot a result\n{no object\n[1]\n"


def test_a_result_is_in_the_file_before_its_step_ends(tmp_path: Path) -> None:
    """The step waits until it finds its own result there."""
    file = tmp_path / "device/now.jsonl"
    program = f"""
import pathlib, time
print('{{"name": "first"}}', flush=True)
while not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)
"""
    assert [line.get("outcome") for line in results_of(tmp_path, python("step", program))] == [None, "done"]


def test_a_step_that_hangs_is_stopped_with_all_its_processes_and_keeps_its_results(
    tmp_path: Path, step_time: StepTime
) -> None:
    step_time.sleeps = (tmp_path / "device/now.jsonl").exists
    child, stopped, after, _ = results_of(tmp_path, python("hangs", HANGS, 3), python("next", "print('{}')"))
    assert stopped["outcome"] == "stopped after 3 s" and after == {"step": "next"}
    assert eventually(lambda: not is_alive(child["value"]))


def test_processes_that_a_step_leaves_are_ended(tmp_path: Path) -> None:
    child, ended = results_of(tmp_path, python("leaves", HANGS.replace("time.sleep(60)\n", "", 1)))
    assert ended["outcome"] == "done" and eventually(lambda: not is_alive(child["value"]))


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (python("step", "import sys; sys.exit('it broke')"), "failed with exit code 1"),
        (Step("step", PLENTY_S, ("/no/such/program",)), "failed: "),
        (python("step", "", tool="no-such-tool"), "skipped: no-such-tool is not on PATH"),
    ],
)
def test_the_next_step_runs_whatever_became_of_the_last(tmp_path: Path, step: Step, outcome: str) -> None:
    first, last = results_of(tmp_path, step, python("next", ""))
    assert first["outcome"].startswith(outcome) and last["outcome"] == "done"
    assert ("it broke" in first.get("log", "")) == (outcome == "failed with exit code 1")


@pytest.mark.usefixtures("step_time")
def test_the_time_of_all_steps_is_limited(tmp_path: Path) -> None:
    hangs, late = results_of(tmp_path, python("hangs", "import time; time.sleep(60)"), python("late", ""), seconds=1)
    assert hangs["outcome"] == "stopped after 1 s" and late["outcome"] == "skipped: no time is left"


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (at_least(0.95), 0.95, "goal met"),
        (at_least(0.95), 0.9, "goal missed by 0.05"),
        (at_most(3.0), 2.9, "goal met"),
        (at_most(3.0), 4.25, "goal missed by 1.25"),
        (REPORTED, 7.0, ""),
    ],
)
def test_a_verdict_says_by_how_much_a_goal_is_missed(goal: Goal, value: float, verdict: str) -> None:
    assert goal.verdict(value) == verdict


def test_all_limits_together_are_nine_minutes() -> None:
    assert sum(step.seconds for step in gpu_steps(Path(), Path())) <= 9 * 60


def test_every_program_of_a_step_exists_and_is_rehearsed() -> None:
    steps, rehearsed = gpu_steps(Path(), Path()), rehearsal_steps(Path(), Path())
    assert [step.name for step in steps] == [step.name for step in rehearsed]
    words = [word for step in (*steps, *rehearsed) for word in step.command if word.startswith(("bench/", "tests/"))]
    assert len(words) > 20 and all((ROOT / word).exists() for word in words)


def test_the_tests_of_a_gpu_are_found() -> None:
    assert {"tests/kernels/test_cuda_gpu.py", "tests/client/async_copy/test_gpu.py"} < set(gpu_tests())
    assert not any("bench" in name for name in gpu_tests())


def test_a_bundle_has_wheels_for_cpython_3_12_on_x86_64_only(tmp_path: Path) -> None:
    good = [
        *("lmdb-3.0.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "click-8.5.1-py3-none-any.whl"),
        *("sortedcontainers-2.4.0-py2.py3-none-any.whl", "x-1-cp311-abi3-manylinux_2_28_x86_64.whl"),
    ]
    bad = [
        *("lmdb-3.0.0-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp312-cp312-manylinux_2_17_aarch64.whl"),
        *("b-1-cp313-abi3-manylinux_2_28_x86_64.whl", "c-1-cp312-cp312-musllinux_1_2_x86_64.whl"),
    ]
    for name in (*good, *bad):
        (tmp_path / name).touch()
    found = list(bundle.problems(tmp_path))
    assert {line.partition(" ")[0] for line in found if "is not for" in line} == set(bad)
    assert "there is no wheel of numpy" in found and "there is no wheel of click" not in found


def test_the_bundle_can_be_made(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/gpu_examination/bundle.py"), str(tmp_path / "bundle")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in made.stderr:
        pytest.skip("no package index is reachable, or it lacks a wheel for CPython 3.12")
    assert made.returncode == 0, made.stdout + made.stderr
    assert list(bundle.problems(tmp_path / "bundle")) == []
    listed = (tmp_path / "bundle/requirements.txt").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == bundle.requirements()


def test_the_documents_say_that_no_gpu_was_measured_until_there_are_results() -> None:
    measured = any((ROOT / "bench/results").glob("*/*.jsonl"))
    assert ("Not measured on a GPU" in (ROOT / "README.md").read_text()) != measured
    assert ("Anything on a GPU" in (ROOT / "docs/benchmarks.md").read_text()) != measured
