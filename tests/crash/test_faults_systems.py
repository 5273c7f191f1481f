"""File systems that hang, so that nothing can end who waits for them, and that lose what they took."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb.verify import verify

from faults import judging
from faults.meeting import OnDisk
from faults.mounting import ext4, frozen, mount_again, tmpfs
from faults.sweeping import EVERYTHING
from oracle.checker import Losses
from pagetier.shm.protocol import Save, Saved
from running import eventually
from sweep.disk_operations import WriteBehind
from sweep.scene import Scene
from sweep.sweeping import Stage, stage

_STOPS_S = 8.0
_TOLD_S = 20.0


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("systems")) as made:
        yield made


class Tight(OnDisk):
    """So much is stored that all leaves memory."""

    keeps = False


def hangs(pid: int) -> bool:
    """Whether a thread of it waits in the kernel, where no signal reaches it."""
    return any(state_of(thread) == "D" for thread in Path(f"/proc/{pid}/task").iterdir())


def ended(pid: int) -> bool:
    """Whether it is gone, or waits for its parent to see that."""
    folder = Path(f"/proc/{pid}")
    return not folder.exists() or state_of(folder) == "Z"


def state_of(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def test_a_file_system_that_hangs(on: Stage, tmp_path: Path) -> None:
    """Its worker can not be killed: the daemon goes on, its end does not wait, the next one has no disk meanwhile."""
    with (
        ext4(tmp_path / "image", tmp_path / "mount") as mount,
        Scene(on.nursery, on.control, tmp_path, WriteBehind.flags(mount)) as scene,
    ):
        scene.begin()
        operation = WriteBehind(scene)
        operation.prepare()
        with frozen(mount):
            operation.act()
            worker = scene.worker()
            assert eventually(lambda: hangs(worker)), "nothing hangs"
            judging.goes_on(scene, operation)
            judging.answers_in_time(scene, operation)
            scene.daemon.signal(signal.SIGUSR1)
            scene.daemon.process.wait(_STOPS_S)  # type: ignore[union-attr]
            assert Path(f"/proc/{worker}").exists()
            scene.daemon.start()
            assert eventually(lambda: scene.client.attached)
            judging.goes_on(scene, operation)
            if EVERYTHING:
                assert eventually(lambda: "still being opened" in scene.daemon.log.read_text(), _TOLD_S)
        assert eventually(lambda: ended(worker)), "who hung does not end"
        judging.comes_to_work(scene)
        judging.settle(scene, Losses(at_most=judging.gone(scene)))


def test_a_file_system_that_loses_what_it_took(on: Stage, tmp_path: Path) -> None:
    """Writes are taken, and then the device has no room for them: fdatasync tells once, and the pages are not there."""
    with (
        tmpfs(tmp_path / "device", "40m") as device,
        ext4(device / "image", tmp_path / "mount") as mount,
        Scene(on.nursery, on.control, tmp_path, OnDisk.flags(mount)) as scene,
    ):
        scene.begin()
        operation = Tight(scene)
        operation.prepare()
        fill(device)
        scene.dropping()
        lose(scene)
        judging.goes_on(scene, operation)
        (device / "filler").unlink()
        pages = judging.comes_to_work(scene)
        scene.daemon.stop()
        mount_again(device / "image", mount)
        assert [verify(str(data), subdir=False) for data in sorted(mount.glob("disk/*/data.mdb"))] == [[], []]
        scene.daemon.start()
        scene.until_disk_is_open()
        assert eventually(lambda: scene.client.attached)
        assert eventually(lambda: scene.look(pages, 1.0).loaded == len(pages)), scene.daemon.log.read_text()
        scene.look(operation.pages, 1.0)
        judging.settle(scene, Losses(at_most=judging.gone(scene)))
        judging.works_again(scene)


def fill(device: Path) -> None:
    """To the last block."""
    with (device / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def lose(scene: Scene) -> None:
    """Stores, and has it synced, until the disk says that it could not."""

    def told() -> bool:
        scene.store(scene.numbers(4))
        saved = scene.ask(Save(0))
        assert isinstance(saved, Saved)
        return bool(saved.trouble)

    assert eventually(told, 20.0), scene.daemon.log.read_text()
