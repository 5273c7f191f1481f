"""Mounts file systems in a file, which can be frozen or lose data."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from small_file_systems import mounted, skip_unless

_TOOLS: Final = ("mkfs.ext4", "mount", "umount", "fsfreeze")
_IMAGE: Final = 128 << 20


@contextmanager
def ext4(image: Path, point: Path) -> Iterator[Path]:
    """Mounts a new ext4 without a journal in a sparse file. Skips the test if that is not possible."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    with image.open("wb") as file:
        file.truncate(_IMAGE)
    skip_unless("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
    with mounted(point, str(image), "-o", "loop"):
        yield point


class SmallDevice:
    """A device smaller than the file system on it, `mount`, which accepts more data than the device can hold."""

    def __init__(self, folder: Path, mount: Path) -> None:
        self.mount = mount
        self._image = folder / "image"
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Fills the device to its last block."""
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass

    def clear(self) -> None:
        """Frees the device again."""
        self._filler.unlink()

    def restart(self) -> None:
        """Mounts the file system again, without the page cache. The caller guarantees that no process uses it."""
        mount_again(self._image, self.mount)


@contextmanager
def small_device(folder: Path, size: str) -> Iterator[SmallDevice]:
    """Yields a device of this size. Skips the test if that is not possible."""
    device = folder / "device"
    with (
        mounted(device, "faults-test", "-t", "tmpfs", "-o", f"size={size}"),
        ext4(device / "image", folder / "mount") as mount,
    ):
        yield SmallDevice(device, mount)


def mount_again(image: Path, point: Path) -> None:
    """Mounts the image again without the content of the page cache. The caller guarantees that no process uses it."""
    subprocess.run(["umount", str(point)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)


@contextmanager
def frozen(point: Path) -> Iterator[None]:
    """Freezes a file system for the duration of the block: a process that writes to it hangs and cannot be killed."""
    skip_unless("fsfreeze", "--freeze", str(point))
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(point)], check=True)
