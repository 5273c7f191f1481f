"""Tests the gate before a disk, and proves that the verdicts find broken promises."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disk_faults import verdicts
from disk_faults.gate import ALL, WRITES, Action, Call, Fault, Gate, RecordedCall
from disk_faults.preload import gated
from disk_faults.sweep import GatedStage, faults_at, gated_stage
from kill_points.disk_operations import WriteBehind
from kill_points.scene import Scene
from pagetier.shm.protocol import Flush
from running_daemon import eventually

_SCRIPT = """
import os, sys
file = os.open(sys.argv[2] + "/data.mdb", os.O_RDWR | os.O_CREAT)
def show(what):
    try:
        print(what(), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
for number in range(3):
    show(lambda: os.pwrite(file, b"12345678", 8 * number))
show(lambda: os.preadv(file, [bytearray(8), bytearray(8)], 0))
show(lambda: os.fdatasync(file))
"""
Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as made:
        made.watch(tmp_path)
        yield made


@pytest.fixture
def start(gate: Gate, tmp_path: Path) -> Start:
    """Starts a process that writes three times, reads and syncs, and whose command line names a worker."""
    command = [sys.executable, "-c", _SCRIPT, "pagetier.tiers.worker", str(tmp_path)]

    def launch() -> subprocess.Popen[str]:
        with gated(gate.path):
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return launch


def test_calls_are_recorded_and_passed_on(gate: Gate, start: Start) -> None:
    assert start().communicate()[0].split() == ["8", "8", "8", "16", "None"]
    calls = [Call.OPEN, Call.PWRITE, Call.PWRITE, Call.PWRITE, Call.PREAD, Call.FDATASYNC]
    assert gate.noted() == [RecordedCall(call, "data.mdb") for call in calls]
    assert gate.struck == 0
    gate.forget()
    assert gate.noted() == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(Action.FAIL, frozenset({Call.PWRITE}), 2, errno.EIO), ["8", "5", "8", "16", "None"]),
        (Fault(Action.FAIL, WRITES, 2, errno.ENOSPC, lasting=True), ["8", "28", "28", "8", "None"]),
        (Fault(Action.FAIL, frozenset({Call.FDATASYNC}), 1, errno.EIO), ["8", "8", "8", "16", "5"]),
        (Fault(Action.SHORTEN, WRITES, 3), ["8", "8", "4", "16", "None"]),
        (Fault(Action.SHORTEN, frozenset({Call.PREAD})), ["8", "8", "8", "8", "None"]),
        (Fault(Action.FAIL, ALL, 1, errno.EIO, file="another"), ["8", "8", "8", "16", "None"]),
    ],
    ids=str,
)
def test_calls_fail_or_are_partial(gate: Gate, start: Start, fault: Fault, said: list[str]) -> None:
    gate.arm(fault)
    assert start().communicate()[0].split() == said


@pytest.mark.parametrize(("action", "written"), [(Action.DIE, 8), (Action.TEAR, 12)])
def test_a_process_dies_before_or_within_a_write(
    gate: Gate, start: Start, tmp_path: Path, action: Action, written: int
) -> None:
    gate.arm(Fault(action, WRITES, 2))
    process = start()
    assert process.communicate()[0].split() == ["8"]
    assert process.returncode == -signal.SIGKILL
    assert (gate.struck, gate.pid) == (1, process.pid)
    assert (tmp_path / "data.mdb").stat().st_size == written


def test_a_call_hangs_until_the_gate_is_opened(gate: Gate, start: Start, tmp_path: Path) -> None:
    gate.arm(Fault(Action.HANG, WRITES, 2))
    process = start()
    assert eventually(lambda: gate.struck == 1)
    assert (tmp_path / "data.mdb").stat().st_size == 8
    gate.open()
    assert process.communicate()[0].split() == ["8", "8", "8", "16", "None"]


def test_a_sweep_covers_every_call_and_every_fault() -> None:
    faults = faults_at([RecordedCall(Call.PWRITE, "0/data.mdb"), RecordedCall(Call.FDATASYNC, "0/data.mdb")])
    single = {(fault.action, fault.calls, fault.number, fault.error) for fault in faults if not fault.lasting}
    assert len(single) == 2 * 2 + 2 + 2 + 1 + 1
    assert sum(fault.lasting for fault in faults) == 1 + 1 + 1 + 1


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedStage]:
    with gated_stage(tmp_path_factory.mktemp("judged")) as made:
        yield made


def test_the_verdicts_find_broken_promises(on: GatedStage, tmp_path: Path) -> None:
    on.gate.watch(tmp_path / "disk")
    with Scene(on.stage.fork_client, on.stage.control, tmp_path, WriteBehind.flags(tmp_path)) as scene:
        scene.begin()
        operation = WriteBehind(scene)
        operation.prepare()
        verdicts.check_engines(scene, operation)
        scene.daemon.signal(signal.SIGSTOP)
        with pytest.raises(AssertionError, match="a store was rejected"):
            verdicts.check_engines(scene, operation)
        scene.daemon.signal(signal.SIGCONT)
        on.gate.arm(Fault(Action.FAIL, WRITES, 1, errno.ENOSPC, lasting=True))
        with pytest.raises(AssertionError, match="No space left"):
            verdicts.store_and_reload(scene)
        on.gate.open()
        verdicts.recover(scene)
        begun = verdicts.begun(scene)
        verdicts.store_and_reload(scene)
        scene.ask(Flush(1, None))
        with pytest.raises(AssertionError, match="a stored page was not found"):
            verdicts.settle(scene, begun)
