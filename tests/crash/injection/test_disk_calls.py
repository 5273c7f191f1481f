"""Sweeps faults over the disk calls of the worker: engines continue, nothing is lost, and the disk works again.

The injector makes calls fail as wanted, and the verdicts find broken promises.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disk_stores import STORE_KINDS, StoreKind, settings_of
from eventually import eventually
from injection import disk_operations, lifecycle_operations
from injection.call_cases import Part, call_cases
from injection.disk_cases import STOP_S, begun, recover, settle, store_and_reload
from injection.disk_operations import WriteBehind
from injection.forked_processes import Stage, stage
from injection.injector import CALLS, WRITES, Action, Case, Injector, Met, Site
from injection.instrumented_build import environment
from injection.operation import Operation
from injection.scene import InjectionScene
from injection.sweep import EVERYTHING, record, sweep
from injection.verdicts import check_engines

# All that a worker does with its disk, and whether it is always tested.
SCENARIO: dict[type[Operation], bool] = {
    WriteBehind: True,
    disk_operations.EvictToDisk: False,
    disk_operations.FillDisk: False,
    disk_operations.LoadFromDisk: True,
    disk_operations.ReadDamaged: False,
    disk_operations.FlushDisk: False,
    disk_operations.SaveAll: True,
    lifecycle_operations.StartWithDisk: True,
    lifecycle_operations.StartWithNewDisk: False,
    lifecycle_operations.StartWithSmallerDisk: True,
    lifecycle_operations.StopWithDisk: True,
}
_FEW = 2
_PARTS = 8


def parts_of(kind: type[Operation]) -> list[Part]:
    """Returns the parts of a sweep: all, for several parallel tests, or some cases, others for each operation."""
    if not EVERYTHING:
        return [Part(_FEW * list(SCENARIO).index(kind), 1, _FEW)] if SCENARIO[kind] else []
    count = 8 * _PARTS if kind is lifecycle_operations.StartWithSmallerDisk else _PARTS
    return [Part(number, count, 0) for number in range(count)]


CASES = [
    pytest.param(kind, part, store, id=f"{kind.__name__}-{at}-{store}")
    for store in STORE_KINDS
    for kind in SCENARIO
    for at, part in enumerate(parts_of(kind))
]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize(("kind", "part", "store"), CASES)
def test_disk_calls_that_go_wrong_break_no_promise(
    on: Stage,
    kind: type[Operation],
    part: Part,
    store: StoreKind,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Tests the cases of a part.

    The number of calls of a batch varies, so a late one may not be made; on a machine with more load than cores, less
    than half of a part's cases were reached.
    """
    flags: tuple[str, ...] = ("--set", f"disk.stop_timeout={STOP_S}s", *settings_of(store))
    if kind is disk_operations.FillDisk and store != "lmdb":
        flags += ("--disk-size", disk_operations.SMALL_IN_FILES)
    swept = sweep(on, kind, tmp_path, flags, lambda scene: part.of(call_cases(record(scene, kind).calls)))
    record_property("swept", [swept.cases, [f"{kind.__name__}: {case}" for case in swept.missed]])
    record_property("counted", {f"faulty calls, {swept.policy}": swept.cases})
    assert 4 * len(swept.missed) <= 3 * swept.cases


def test_a_sweep_covers_every_call_and_every_fault() -> None:
    cases = call_cases(Counter({Site.PWRITE: 1, Site.FDATASYNC: 1}))
    assert len({case for case in cases if not case.lasting}) == 2 * 2 + 2 + 2 + 1 + 1
    assert sum(case.lasting for case in cases) == 1 + 1 + 1 + 1


# --- the injector ----------------------------------------------------------------------------------------------------

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
def injector(tmp_path: Path) -> Iterator[Injector]:
    with Injector(tmp_path / "injector") as made:
        made.watch(tmp_path)
        yield made


@pytest.fixture
def start(injector: Injector, tmp_path: Path) -> Start:
    """Starts a process that writes three times, reads and syncs, and whose command line names a worker."""
    command = [sys.executable, "-c", _SCRIPT, "pagetier.tiers.worker", str(tmp_path)]
    return lambda: subprocess.Popen(command, env=environment(injector.path), stdout=subprocess.PIPE, text=True)


def test_calls_are_recorded_and_passed_on(injector: Injector, start: Start) -> None:
    assert start().communicate()[0].split() == ["8", "8", "8", "16", "None"]
    calls = {Site.OPEN: 1, Site.PWRITE: 3, Site.PREAD: 1, Site.FDATASYNC: 1}
    assert injector.calls() == {Met(site, "data.mdb"): times for site, times in calls.items()}
    assert injector.struck == 0
    injector.forget()
    assert not injector.met()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case(Action.FAIL, frozenset({Site.PWRITE}), number=2, error=errno.EIO), ["8", "5", "8", "16", "None"]),
        (Case(Action.FAIL, WRITES, number=2, error=errno.ENOSPC, lasting=True), ["8", "28", "28", "8", "None"]),
        (Case(Action.FAIL, frozenset({Site.FDATASYNC}), error=errno.EIO), ["8", "8", "8", "16", "5"]),
        (Case(Action.SHORTEN, WRITES, number=3), ["8", "8", "4", "16", "None"]),
        (Case(Action.SHORTEN, frozenset({Site.PREAD})), ["8", "8", "8", "8", "None"]),
        (Case(Action.FAIL, CALLS, "another", error=errno.EIO), ["8", "8", "8", "16", "None"]),
    ],
    ids=str,
)
def test_calls_fail_or_are_partial(injector: Injector, start: Start, case: Case, said: list[str]) -> None:
    injector.arm(case)
    assert start().communicate()[0].split() == said


@pytest.mark.parametrize(("action", "written"), [(Action.DIE, 8), (Action.TEAR, 12)])
def test_a_process_dies_before_or_within_a_write(
    injector: Injector, start: Start, tmp_path: Path, action: Action, written: int
) -> None:
    injector.arm(Case(action, WRITES, number=2))
    process = start()
    assert process.communicate()[0].split() == ["8"]
    assert process.returncode == -signal.SIGKILL
    assert (injector.struck, injector.pid) == (1, process.pid)
    assert (tmp_path / "data.mdb").stat().st_size == written


def test_a_call_hangs_until_the_injector_is_disarmed(injector: Injector, start: Start, tmp_path: Path) -> None:
    injector.arm(Case(Action.HANG, WRITES, number=2))
    process = start()
    assert eventually(lambda: injector.struck == 1)
    assert (tmp_path / "data.mdb").stat().st_size == 8
    injector.disarm()
    assert process.communicate()[0].split() == ["8", "8", "8", "16", "None"]


def test_the_verdicts_find_broken_promises(on: Stage, tmp_path: Path) -> None:
    with InjectionScene(on, tmp_path, WriteBehind.flags_in(tmp_path), timeout=4.0) as scene:
        operation = WriteBehind.begun(scene)
        check_engines(scene, operation)
        scene.daemon.signal(signal.SIGSTOP)
        with pytest.raises(AssertionError, match="a store was rejected"):
            check_engines(scene, operation)
        scene.daemon.signal(signal.SIGCONT)
        scene.injector.arm(Case(Action.FAIL, WRITES, error=errno.ENOSPC, lasting=True))
        with pytest.raises(AssertionError, match="No space left"):
            store_and_reload(scene)
        scene.injector.disarm()
        recover(scene)
        since = begun(scene)
        store_and_reload(scene)
        scene.daemon.flush()
        with pytest.raises(AssertionError, match="a stored page was not found"):
            settle(scene, since)
