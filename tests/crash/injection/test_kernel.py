"""Tests faults by the kernel: strace makes calls fail, wait or kill the worker; files are cut, replaced or removed.

File systems also hang, so that the worker cannot be killed, or lose data after they accepted it.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lmdb.verify import verify

from eventually import PATIENCE_S, eventually
from injection.colliding_pages import PAGES
from injection.disk_cases import begun, end_disk_case, recover, settle, store_and_reload
from injection.disk_operations import WriteBehind
from injection.file_changes import CHANGES, Change
from injection.forked_processes import Stage, stage
from injection.injector import Site
from injection.loop_mounts import ext4, frozen, small_device
from injection.scene import InjectionScene
from injection.strace import calls_in, injected, recorded
from injection.sweep import EVERYTHING
from injection.verdicts import SHORT_S, check_engines, check_index
from pagetier.shm.protocol import Save, Saved
from process_states import state_of

_MOST_RESTARTS = 6
_DEAD_S = 10.0  # until the daemon has a new worker; by then the operation is over and makes no more calls
_DEADLY = ("pwrite64", "writev", "fdatasync", "fsync", "ftruncate", "renameat2")
_INJECTED = (("fdatasync", "error=EIO:when=1"), ("pwrite64", "delay_enter=1000000:when=1"))
_INJECTED_ALL = (
    *((call, f"error={error}:when=1+") for call in ("pwrite64", "writev") for error in ("EIO", "ENOSPC")),
    *((call, "error=EIO:when=1+") for call in ("fdatasync", "fsync", "ftruncate", "renameat2")),
    *((call, "delay_enter=20000000:when=1") for call in ("pwrite64", "writev", "fdatasync", "fsync")),
    ("fallocate", "error=ENOSPC:when=1+"),
)
_CHANGED = CHANGES if EVERYTHING else [change for change in CHANGES if change.few]


class StoreAndSave(WriteBehind):
    """Pages are stored and written, and an administrator has the disk synced."""

    def act(self) -> None:
        super().act()
        self.send("save")


class OnDisk(WriteBehind):
    """Pages are on disk only, in both parts, and some in memory as well."""

    before = PAGES


class Tight(OnDisk):
    """So many pages are stored that all earlier ones are evicted from memory."""

    keeps_pages = False


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("kernel")) as made:
        yield made


@pytest.fixture
def scene(on: Stage, tmp_path: Path) -> Iterator[InjectionScene]:
    with InjectionScene(on, tmp_path, StoreAndSave.flags_in(tmp_path)) as made:
        yield made


def test_the_injector_covers_every_call_of_the_worker(scene: InjectionScene, tmp_path: Path) -> None:
    """The sweeps cover all calls of the worker: strace sees no others."""
    operation = StoreAndSave.begun(scene)
    store_and_reload(scene)
    with recorded([scene.daemon.pid, scene.worker()], tmp_path / "trace"):
        scene.injector.forget()
        operation.act()
        assert eventually(operation.done)
        store_and_reload(scene)
        scene.empty()
        scene.daemon.signal(signal.SIGTERM)
        scene.daemon.wait()
    calls, seen = scene.injector.calls(), calls_in(tmp_path / "trace", (tmp_path / "disk").resolve())
    assert {one: times for one, times in calls.items() if one.site is not Site.OPEN} == dict(seen)
    sites = {one.site for one in seen}
    assert sites >= {Site.PWRITE, Site.WRITEV, Site.PREAD, Site.FDATASYNC, Site.FSYNC, Site.FALLOCATE}
    assert Site.MSYNC not in sites
    scene.daemon.start()


def run_case(scene: InjectionScene, call: str, what: str) -> bool:
    """Runs a case and returns whether the worker died of the fault. Raises AssertionError if a promise is broken."""
    operation = StoreAndSave.begun(scene)
    since = begun(scene)
    with injected(since.worker, call, what):
        operation.act()
        check_engines(scene, operation)
        operation.load_away(SHORT_S)
        assert eventually(operation.engines_done), scene.daemon.log.read_text()
        died = "signal=KILL" in what and eventually(lambda: scene.worker() != since.worker, _DEAD_S)
    if scene.worker() != since.worker:
        scene.renew()
    scene.until_disk_is_open()
    end_disk_case(scene, operation, since)
    return died


@pytest.mark.parametrize(("call", "what"), _INJECTED_ALL if EVERYTHING else _INJECTED)
def test_calls_that_the_kernel_fails_break_no_promise(scene: InjectionScene, call: str, what: str) -> None:
    run_case(scene, call, what)


def test_death_at_the_first_write_breaks_no_promise(scene: InjectionScene) -> None:
    assert run_case(scene, "pwrite64", "signal=KILL:when=1")


@pytest.mark.skipif(not EVERYTHING, reason="takes minutes: make faults")
@pytest.mark.parametrize("call", _DEADLY)
def test_death_at_each_call_breaks_no_promise(
    scene: InjectionScene, call: str, record_property: Callable[[str, object], None]
) -> None:
    """Kills the worker at the first such call of a thread, its second, and so on, until there is none."""
    number = next(at for at in itertools.count() if not run_case(scene, call, f"signal=KILL:when={at + 1}"))
    record_property("deaths", number)
    assert number


@pytest.mark.parametrize("change", _CHANGED, ids=str)
def test_changed_files_of_an_open_tier_break_no_promise(on: Stage, change: Change, tmp_path: Path) -> None:
    """Engines continue, and the tier restarts with the pages that can be verified."""
    with InjectionScene(on, tmp_path, OnDisk.flags_in(tmp_path)) as scene:
        operation = OnDisk.begun(scene)
        lines = scene.daemon.log.read_text().count("\n")
        since = begun(scene)

        def logged() -> str:
            return "\n".join(scene.daemon.log.read_text().splitlines()[lines:])

        scene.dropping()  # the change may lose pages that are on disk only, but no byte may be wrong
        change.make(tmp_path / "disk")
        check_engines(scene, operation)
        operation.load_away(SHORT_S)
        assert eventually(lambda: change.log_words in logged()), logged()
        pages = recover(scene)
        check_index(scene)
        assert logged().count("no disk tier") <= _MOST_RESTARTS, logged()
        scene.renew()
        assert eventually(lambda: scene.verify(pages, PATIENCE_S).loaded == len(pages)), (
            f"pages that were reported as on disk are missing after a restart: {logged()}"
        )
        settle(scene, since)
        store_and_reload(scene)


def hangs(pid: int) -> bool:
    """Returns whether a thread of the process waits in the kernel and ignores signals; others may have ended."""
    return any(state_of(int(thread.name)) == "D" for thread in Path(f"/proc/{pid}/task").glob("*"))


def test_a_file_system_that_hangs_does_not_delay_engines(on: Stage, tmp_path: Path) -> None:
    """The worker cannot be killed: the daemon serves and stops without delay, the next one serves without a disk."""
    with (
        ext4(tmp_path / "image", tmp_path / "mount") as mount,
        InjectionScene(on, tmp_path, WriteBehind.flags_in(mount)) as scene,
    ):
        operation = WriteBehind.begun(scene)
        since = begun(scene)
        with frozen(mount):
            operation.act()
            worker = scene.worker()
            assert eventually(lambda: hangs(worker)), "the worker does not hang"
            check_engines(scene, operation)
            operation.load_away(SHORT_S)
            scene.daemon.signal(signal.SIGUSR1)
            scene.daemon.process.wait(PATIENCE_S)  # type: ignore[union-attr]
            assert hangs(worker)
            scene.daemon.start()
            assert eventually(lambda: scene.client.attached)
            check_engines(scene, operation)
            if EVERYTHING:
                assert eventually(lambda: "still being opened" in scene.daemon.log.read_text())
        assert eventually(lambda: not hangs(worker)), "the worker that hung does not end"
        assert eventually(operation.engines_done), "an engine hangs"
        recover(scene)
        settle(scene, since)


def test_a_file_system_that_loses_data_is_detected(on: Stage, tmp_path: Path) -> None:
    """Writes succeed, then the device has no room: only one fdatasync reports it, and the pages are lost."""
    with small_device(tmp_path, "40m") as device, InjectionScene(on, tmp_path, OnDisk.flags_in(device.mount)) as scene:
        operation = Tight.begun(scene)
        since = begun(scene)
        device.fill()
        scene.dropping()
        lose(scene)
        check_engines(scene, operation)
        device.clear()
        pages = recover(scene)
        scene.daemon.stop()
        device.restart()
        data = sorted(device.mount.glob("disk/*/data.mdb"))
        assert [verify(str(file), subdir=False) for file in data] == [[], []]  # type: ignore[no-untyped-call]
        scene.daemon.start()
        scene.until_disk_is_open()
        assert eventually(lambda: scene.client.attached)
        assert eventually(lambda: scene.verify(pages, 1.0).loaded == len(pages)), scene.daemon.log.read_text()
        scene.empty()
        settle(scene, since)
        store_and_reload(scene)


def lose(scene: InjectionScene) -> None:
    """Stores and saves pages until the daemon reports that the disk failed."""

    def reported() -> bool:
        scene.store(scene.numbers(4))
        saved = scene.daemon.ask(Save(0))
        assert isinstance(saved, Saved)
        return bool(saved.trouble)

    assert eventually(reported), scene.daemon.log.read_text()
