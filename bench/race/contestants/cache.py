"""What the race asks of each contestant: a cache that can be started, killed and stopped, and engines that use it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.uint8]
"""Pages of a prompt: a row for each, C-contiguous."""
Tokens = npt.NDArray[np.int32]


class Sizes(msgspec.Struct, frozen=True):
    """What every contestant gets alike.

    Attributes:
        memory: Bytes of host memory.
        page: Bytes of a page.
        page_tokens: Tokens of a page.
        disk: Bytes on disk; 0 for none.
    """

    memory: int
    page: int
    page_tokens: int
    disk: int = 0


class Engine(Protocol):
    """One engine's connection to a cache, in the engine's process. Prompts are in the form that prepare() returns."""

    def prepare(self, tokens: Tokens) -> Any:
        """Returns a prompt in the form in which the engine has it anyway. Not timed."""

    def lookup(self, prompt: Any) -> int:
        """Returns how many leading pages are cached, and releases what the answer pinned."""

    def store(self, prompt: Any, pages: Pages) -> int:
        """Stores pages. Returns how many of them the cache reports as stored or as present already."""

    def load(self, prompt: Any, out: Pages) -> int:
        """Copies the leading pages that are cached. Returns how many."""

    def begin_store(self, prompt: Any, pages: Pages) -> int:
        """Does a store up to its middle: half of each page is written, nothing is reported as complete."""

    def begin_load(self, prompt: Any) -> int:
        """Does a load up to its middle: the pages are found and pinned. Returns how many."""

    def close(self) -> None:
        """Ends the connection."""


OpenEngine = Callable[[], Engine]
"""Opens an engine in its process. It can be pickled."""


class Cache(Protocol):
    """A contestant."""

    name: str
    version: str

    def __enter__(self) -> Self:
        """Starts it, and waits until it serves."""

    def __exit__(self, *error: object) -> None:
        """Stops it and removes what it made."""

    def opener(self) -> OpenEngine:
        """Returns what opens an engine."""

    def pids(self) -> Sequence[int]:
        """Returns the processes of its server; none if it is a library."""

    def restart(self) -> None:
        """Starts the server again after it was killed."""

    def sync(self, pages: int) -> None:
        """Returns when at least so many pages are on disk, and everything that was written is synced."""

    def drop_memory(self) -> bool:
        """Leaves the pages on disk only. Returns whether that is possible; the kernel's page cache stays."""

    def disk_files(self) -> list[Path]:
        """Returns the files on disk that hold pages."""

    def leftovers(self) -> list[Path]:
        """Returns files and shared memory that it has made and not removed."""


def shared_prefix(system: str) -> str:
    """Returns how names in /dev/shm begin. They contain the name of the race's folder, so that it can remove them."""
    return f"race-{system}-{Path(tempfile.gettempdir()).name}-"


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Sends a signal to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def files_under(folder: Path) -> list[Path]:
    """Returns all files under a folder, which other processes may be changing."""
    found = []
    for parent, _, names in os.walk(folder):
        found += [Path(parent, name) for name in names]
    return sorted(found)


def sync_files(files: Sequence[Path]) -> None:
    """Syncs files that may have been removed since."""
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def drop_page_cache(files: Sequence[Path]) -> None:
    """Syncs files and drops them from the kernel's page cache."""
    sync_files(files)
    for file in files:
        with suppress(FileNotFoundError), file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
