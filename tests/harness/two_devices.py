"""A daemon whose disk tier has two devices, each a folder of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from bare_engine import Engine
from disk_daemon import FRAMES, DiskDaemon
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing
from pagetier.daemon.workers.supervisor import DISK_WORKER
from pagetier.shm.protocol import FetchOutcome
from running_daemon import RunningDaemon


class TwoDevices(DiskDaemon):
    """A daemon with an arena of `FRAMES` frames that writes all pages at once to two devices.

    Attributes:
        folders: The folders of the devices.
    """

    def __init__(
        self, *more: str, folders: Sequence[Path] = (), size: str = "64MiB", before: Sequence[str] = ()
    ) -> None:
        super().__init__(
            FRAMES, size, "--set", "disk.write=through", "--set", "index.entries=4000", *more, before=before
        )
        self.folders = list(folders) or [Path(self.folder.name) / name for name in ("first", "second")]

    def start(self, *more: str) -> Self:
        """Starts the daemon with its devices in its file, and waits until it serves."""
        self.config.write_text(self.text())
        return RunningDaemon.start(self, *more)

    def text(self, *numbers: int) -> str:
        """Returns a configuration with these devices, by default all."""
        folders = ", ".join(f'"{self.folders[number]}"' for number in numbers or range(len(self.folders)))
        return f'[disk]\npath = [{folders}]\nsize = "{self._size}"\n'

    def wait_open(self, restarts: int = 0) -> None:
        """Waits until both devices are open after at least `restarts` restarts of their workers together."""
        assert self.until(lambda disk: self._all_open(disk) and disk.restarts >= restarts), self.reported()

    def _all_open(self, disk: DiskReport) -> bool:
        open_ones = [device.folder for device in disk.devices if device.standing is Standing.OPEN]
        return sorted(open_ones) == sorted(map(str, self.folders))

    def device(self, number: int) -> DeviceReport:
        """Returns the report of a device."""
        folder = str(self.folders[number])
        return next(device for device in self.report().devices if device.folder == folder)

    def until_device(self, number: int, standing: Standing, *reasons: str) -> None:
        """Waits until a device has this standing, for these reasons."""
        folder = str(self.folders[number])
        assert self.until(
            lambda disk: any(
                device.folder == folder
                and device.standing is standing
                and all(reason in device.trouble for reason in reasons)
                for device in disk.devices
            )
        ), self.reported()

    def worker_of(self, number: int) -> int:
        """Returns the PID of the worker of a device, which has the device's files open."""
        for slot in self.slots():
            if slot.name == DISK_WORKER and _has_open(slot.pid, self.folders[number]):
                self._workers.add(slot.pid)
                return slot.pid
        raise AssertionError(f"no worker of {self.folders[number]}: {self.reported()}")

    def kill_device(self, number: int, signum: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to the worker of a device and returns its PID."""
        pid = self.worker_of(number)
        os.kill(pid, signum)
        return pid

    def replace_device(self, number: int, contents: str | None = None) -> Path:
        """Replaces the folder of a device by an empty one or a file, kills its worker, and returns the old folder."""
        folder = self.folders[number]
        worker = self.kill_device(number, signal.SIGSTOP)  # else it may notice and end before it is killed
        away = folder.rename(folder.with_name("away"))
        folder.mkdir() if contents is None else folder.write_text(contents)
        os.kill(worker, signal.SIGKILL)
        return away

    @contextmanager
    def stopped_device(self, number: int) -> Iterator[None]:
        """Stops the worker of a device for the duration of the block."""
        pid = self.kill_device(number, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def read_all(self, engine: Engine, numbers: Sequence[int]) -> int:
        """Reads pages one by one, compares their bytes, and returns how many were there."""
        read = (number for number in numbers if engine.fetch([number], 5) == [FetchOutcome.IN_MEMORY])
        return sum(engine.where(number) == "memory" for number in read)


def _has_open(pid: int, folder: Path) -> bool:
    with suppress(OSError):
        return any(_target(link).startswith(f"{folder}/") for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
