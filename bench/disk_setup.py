"""A daemon with a disk for benchmarks, and the operations on it.

`bench/compare.py` runs this file with older commits, too: from pagetier it imports what they have in the same place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from daemon_setup import Stage
from pagetier.shm._core import IndexHeader, Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Flush, Flushed, Observe, Save, Saved
from pagetier.shm.segment_files import observe_and_close


class Scene(Stage):
    """A daemon with a disk, and the operations on it."""

    def __init__(self, folder: Path, *more: str, **environment: str) -> None:
        self.disk = folder / "tier"
        super().__init__("--disk-path", str(self.disk), *more, **environment)

    def ask_saved(self) -> None:
        """Writes everything to disk and syncs."""
        with self.observing() as (link, _):
            while True:
                saved = link.ask(Save(1), 30)
                assert isinstance(saved, Saved) and not saved.trouble, saved
                if saved.synced:
                    return
                time.sleep(0.002)

    def wait_until_nothing_is_saved(self) -> None:
        """Waits until the daemon no longer writes everything: it continues for a moment after the last request."""
        time.sleep(2.5)

    def wait_quiet(self) -> None:
        """Waits until nothing is written any more."""
        seen = -1
        while (written := self.header().disk_written) != seen:
            seen = written
            time.sleep(1.0)

    def flush(self, tier: str) -> None:
        """Drops everything from one tier."""
        with self.observing() as (link, _):
            flushed = link.ask(Flush(1, None, tier), 30)
            assert isinstance(flushed, Flushed) and not flushed.kept, flushed

    def header(self) -> IndexHeader:
        """Returns the counters of the index."""
        with self.observing() as (_, observer):
            return observer.header()

    def loaded_bytes(self) -> int:
        """Returns the bytes that engines have loaded from memory."""
        with self.observing() as (_, observer):
            return observer.counts().loaded_bytes

    def disk_open(self, pages: int = 0) -> bool:
        """Returns whether the disk tier is open, with at least `pages` pages."""
        with self.observing() as (_, observer):
            text = observer.status() or b""
            return b'"standing":"open"' in text and observer.header().disk_pages >= pages

    def drop_cache(self) -> None:
        """Drops the files from the kernel's page cache."""
        for file in data_files(self.disk):
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    @contextmanager
    def observing(self) -> Iterator[tuple[Link, Observer]]:
        """Attaches an observer for the duration of the context."""
        with closing(Link(self.socket, 10)) as link:
            yield link, observe_and_close(link.greet(Observe(BUILD), 10).descriptors)

    def worker_cpu(self) -> float:
        """Returns the CPU time of the disk worker in seconds."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        workers = [
            Path("/proc", pid) for pid in children if b"tiers.worker" in Path("/proc", pid, "cmdline").read_bytes()
        ]
        fields = [(path / "stat").read_text().rpartition(")")[2].split() for path in workers]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


class QuietScene(Scene):
    """A daemon that writes no page ahead of eviction, so that it leaves the machine to what is measured."""

    PROGRAM = """
import os
import pagetier.daemon.main as daemon
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
if hasattr(daemon, "Invocation"):
    daemon.main(obj=daemon.Invocation(defaults=Config(disk=DiskOptions(write_behind=0.0))))
else:  # another commit, where it was a setting
    os.environ["PAGETIER_DISK_WRITE_BEHIND"] = "0"
    daemon.main()
"""


def data_files(disk: Path) -> list[Path]:
    """Returns the files of a tier that hold pages, or what is known of them."""
    return [path for path in disk.glob("*/*") if path.name == "data.mdb" or path.name.startswith("frames.")]


def cached_bytes(path: Path) -> int:
    """Returns how many bytes of a file are in the kernel's page cache."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        seen = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        begin = ctypes.c_char.from_buffer(memory)
        address, out = ctypes.addressof(begin), seen.ctypes.data
        ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(out))
        del begin
    return int((seen & 1).sum()) * mmap.PAGESIZE


def until(what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until `ready` returns true."""
    ends = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > ends:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.002)
