"""Tests faults by the kernel: strace makes calls fail, wait or kill the worker; files are cut, replaced or removed.

File systems also hang, so that the worker cannot be killed, or lose data after they accepted it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lmdb.verify import verify

from disk_faults import strace_cases, verdicts
from disk_faults.changed_files import OnDisk, run_case
from disk_faults.file_changes import CHANGES, Change
from disk_faults.gate import Call
from disk_faults.loop_mounts import ext4, frozen, mount_again, tmpfs
from disk_faults.strace import calls_in, recorded
from disk_faults.strace_cases import Injection, StoreAndSave, death, deaths
from disk_faults.sweep import EVERYTHING, GatedStage, gated_stage
from kill_points.disk_operations import WriteBehind
from kill_points.scene import Scene
from pagetier.shm.protocol import Save, Saved
from running_daemon import START_S, eventually

_STOPS_S = 8.0
_LOGGED_WITHIN_S = 20.0
_DEADLY = ("pwrite64", "writev", "fdatasync", "fsync", "ftruncate", "renameat2")
_INJECTED = (Injection("fdatasync", "error=EIO:when=1"), Injection("pwrite64", "delay_enter=1000000:when=1"))
_INJECTED_ALL = (
    *(Injection(call, f"error={error}:when=1+") for call in ("pwrite64", "writev") for error in ("EIO", "ENOSPC")),
    *(Injection(call, "error=EIO:when=1+") for call in ("fdatasync", "fsync", "ftruncate", "renameat2")),
    *(Injection(call, "delay_enter=10000000:when=1") for call in ("pwrite64", "writev", "fdatasync", "fsync")),
    Injection("fallocate", "error=ENOSPC:when=1+"),
)
_CHANGED = CHANGES if EVERYTHING else [change for change in CHANGES if change.few]


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedStage]:
    with gated_stage(tmp_path_factory.mktemp("kernel")) as made:
        yield made


@pytest.fixture
def scene(on: GatedStage, tmp_path: Path) -> Iterator[Scene]:
    on.gate.watch(tmp_path / "disk")
    with Scene(on.stage.fork_client, on.stage.control, tmp_path, StoreAndSave.flags(tmp_path)) as made:
        yield made


def test_the_gate_covers_every_call_of_the_worker(on: GatedStage, scene: Scene, tmp_path: Path) -> None:
    """The sweeps cover all calls of the worker: strace sees no others."""
    scene.begin()
    operation = StoreAndSave(scene)
    operation.prepare()
    verdicts.store_and_reload(scene)
    worker = scene.worker()
    with recorded([scene.daemon.pid, worker], tmp_path / "trace"):
        on.gate.forget()
        operation.act()
        assert eventually(operation.done, START_S)
        verdicts.store_and_reload(scene)
        scene.empty()
        scene.daemon.signal(signal.SIGTERM)
        scene.daemon.wait()
    noted, seen = on.gate.counts(), calls_in(tmp_path / "trace", (tmp_path / "disk").resolve())
    opened = {one for one in noted if one.call is Call.OPEN}
    assert {one: noted[one] for one in noted if one not in opened} == dict(seen)
    assert {one.call for one in seen} >= {
        Call.PWRITE,
        Call.WRITEV,
        Call.PREAD,
        Call.FDATASYNC,
        Call.FSYNC,
        Call.FALLOCATE,
    }
    assert not any(one.call is Call.MSYNC for one in seen)
    scene.daemon.start()


@pytest.mark.parametrize("injection", _INJECTED_ALL if EVERYTHING else _INJECTED, ids=str)
def test_calls_that_the_kernel_fails_break_no_promise(scene: Scene, injection: Injection) -> None:
    strace_cases.run_case(scene, injection)


def test_death_at_the_first_write_breaks_no_promise(scene: Scene) -> None:
    assert strace_cases.run_case(scene, death("pwrite64", 1))


@pytest.mark.skipif(not EVERYTHING, reason="takes minutes: make faults")
@pytest.mark.parametrize("call", _DEADLY)
def test_death_at_each_call_breaks_no_promise(
    scene: Scene, call: str, record_property: Callable[[str, object], None]
) -> None:
    number = deaths(scene, call)
    record_property("deaths", number)
    assert number


@pytest.mark.parametrize("change", _CHANGED, ids=str)
def test_changed_files_of_an_open_tier_break_no_promise(on: GatedStage, change: Change, tmp_path: Path) -> None:
    with Scene(on.stage.fork_client, on.stage.control, tmp_path, OnDisk.flags(tmp_path)) as scene:
        run_case(scene, change, tmp_path / "disk")


class Tight(OnDisk):
    """So many pages are stored that all earlier ones are evicted from memory."""

    keeps_pages = False


def hangs(pid: int) -> bool:
    """Returns whether a thread of the process waits in the kernel and ignores signals; others may have ended."""
    return any(state_of(thread) == "D" for thread in Path(f"/proc/{pid}/task").glob("*"))


def state_of(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_file_system_that_hangs_does_not_delay_engines(on: GatedStage, tmp_path: Path) -> None:
    """The worker cannot be killed: the daemon serves and stops without delay, the next one serves without a disk."""
    with (
        ext4(tmp_path / "image", tmp_path / "mount") as mount,
        Scene(on.stage.fork_client, on.stage.control, tmp_path, WriteBehind.flags(mount)) as scene,
    ):
        scene.begin()
        operation = WriteBehind(scene)
        operation.prepare()
        begun = verdicts.begun(scene)
        with frozen(mount):
            operation.act()
            worker = scene.worker()
            assert eventually(lambda: hangs(worker)), "the worker does not hang"
            verdicts.check_engines(scene, operation)
            verdicts.check_load_timeout(scene, operation)
            scene.daemon.signal(signal.SIGUSR1)
            scene.daemon.process.wait(_STOPS_S)  # type: ignore[union-attr]
            assert hangs(worker)
            scene.daemon.start()
            assert eventually(lambda: scene.client.attached)
            verdicts.check_engines(scene, operation)
            if EVERYTHING:
                assert eventually(lambda: "still being opened" in scene.daemon.log.read_text(), _LOGGED_WITHIN_S)
        assert eventually(lambda: not hangs(worker)), "the worker that hung does not end"
        assert eventually(operation.engines_done), "an engine hangs"
        verdicts.recover(scene)
        verdicts.settle(scene, begun)


def test_a_file_system_that_loses_data_is_detected(on: GatedStage, tmp_path: Path) -> None:
    """Writes succeed, then the device has no room: only one fdatasync reports it, and the pages are lost."""
    with (
        tmpfs(tmp_path / "device", "40m") as device,
        ext4(device / "image", tmp_path / "mount") as mount,
        Scene(on.stage.fork_client, on.stage.control, tmp_path, OnDisk.flags(mount)) as scene,
    ):
        scene.begin()
        operation = Tight(scene)
        operation.prepare()
        begun = verdicts.begun(scene)
        fill(device)
        scene.dropping()
        lose(scene)
        verdicts.check_engines(scene, operation)
        (device / "filler").unlink()
        pages = verdicts.recover(scene)
        scene.daemon.stop()
        mount_again(device / "image", mount)
        assert [sound(data) for data in sorted(mount.glob("disk/*/data.mdb"))] == [[], []]
        scene.daemon.start()
        scene.until_disk_is_open()
        assert eventually(lambda: scene.client.attached)
        assert eventually(lambda: scene.verify(pages, 1.0).loaded == len(pages)), scene.daemon.log.read_text()
        scene.empty()
        verdicts.settle(scene, begun)
        verdicts.store_and_reload(scene)


def sound(data: Path) -> list[str]:
    """Returns the errors that a data file has on the disk."""
    wrong: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    return wrong


def fill(device: Path) -> None:
    """Fills a device to its last block."""
    with (device / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def lose(scene: Scene) -> None:
    """Stores and saves pages until the daemon reports that the disk failed."""

    def reported() -> bool:
        scene.store(scene.numbers(4))
        saved = scene.ask(Save(0))
        assert isinstance(saved, Saved)
        return bool(saved.trouble)

    assert eventually(reported, 20.0), scene.daemon.log.read_text()
