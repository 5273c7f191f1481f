"""Populates the arena: allocates all of its memory at the start, in parallel, so that none is missing later."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import msgspec

from pagetier.daemon.common.progress import Progress, no_progress
from pagetier.shm import clock
from pagetier.shm.units import counted, format_size

# Small enough to stop soon and to show progress, large enough that the cost of starting one is negligible.
CHUNK_BYTES = 32 << 20
# Fewer threads than a host has cores saturate its memory bus with zeroing.
_MOST_THREADS = 16

Populate = Callable[[int, int], None]
"""Allocates memory for `length` bytes of the arena from `offset` on, without the GIL. Raises OSError if it cannot."""


class Prefaulted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of populating the arena.

    Attributes:
        nbytes: Bytes that were populated.
        wanted: Bytes of the arena.
        seconds: The time that it took.
        threads: The number of threads.
    """

    nbytes: int
    wanted: int
    seconds: float
    threads: int

    @property
    def complete(self) -> bool:
        """Whether the whole arena was populated; it is not if `stop` was set."""
        return self.nbytes == self.wanted

    def __str__(self) -> str:
        rate = format_size(int(self.nbytes / max(self.seconds, 1e-9)))
        took = f"{self.seconds:.1f} s, {rate}/s, {counted(self.threads, 'thread')}"
        return f"{format_size(self.nbytes)} of {format_size(self.wanted)} populated in {took}"


class PrefaultError(Exception):
    """The arena cannot be populated; the message says why.

    Attributes:
        errno: The error number of the kernel.
        nbytes: Bytes that were populated before.
    """

    def __init__(self, reason: int, nbytes: int, wanted: int) -> None:
        super().__init__(f"{_why(reason)}, after {format_size(nbytes)} of {format_size(wanted)} were populated")
        self.errno = reason
        self.nbytes = nbytes


def prefault(
    populate: Populate,
    total: int,
    *,
    threads: int = 0,
    progress: Progress = no_progress,
    stop: threading.Event | None = None,
    chunk: int = CHUNK_BYTES,
) -> Prefaulted:
    """Populates the bytes 0 to `total` in chunks, each byte once.

    Args:
        populate: Called for each chunk, on several threads.
        total: Bytes to populate.
        threads: The number of threads; 0: one for each core and chunk, at most 16.
        progress: Called with the bytes done and the total, by the calling thread only.
        stop: Setting it ends the work soon, with less than `total` done.
        chunk: Bytes of a chunk.

    Returns:
        What was populated.

    Raises:
        PrefaultError: Memory ran out. All threads have ended, and what was populated stays.
    """
    work = _Work(populate, total, stop or threading.Event())
    count = threads or _auto_threads(total, chunk)
    began = clock.now()
    with ThreadPoolExecutor(count, thread_name_prefix="prefault") as pool:
        try:
            work.watch([pool.submit(work.fill, *part) for part in _chunks(total, chunk)], progress)
        finally:
            work.halt.set()
    if work.error is not None:
        raise PrefaultError(work.error.errno or errno.EIO, work.done, total) from work.error
    return Prefaulted(nbytes=work.done, wanted=total, seconds=clock.now() - began, threads=count)


class _Work:
    """The state that the threads of one prefault() share.

    Only the calling thread writes `done` and `error`, in watch().
    """

    def __init__(self, populate: Populate, total: int, stop: threading.Event) -> None:
        self.populate = populate
        self.total = total
        self.stop = stop
        self.halt = threading.Event()
        self.done = 0
        self.error: OSError | None = None

    def fill(self, offset: int, length: int) -> int:
        """Populates a chunk and returns its bytes; 0 once the work is to end."""
        if self.halt.is_set() or self.stop.is_set():
            return 0
        try:
            self.populate(offset, length)
        except BaseException:
            self.halt.set()
            raise
        return length

    def watch(self, chunks: list[Future[int]], progress: Progress) -> None:
        """Counts the finished chunks and keeps the first error."""
        progress(0, self.total)
        for chunk in as_completed(chunks):
            try:
                self.done += chunk.result()
            except OSError as error:
                self.error = self.error or error
            progress(self.done, self.total)


def _chunks(total: int, chunk: int) -> Iterator[tuple[int, int]]:
    return ((offset, min(chunk, total - offset)) for offset in range(0, total, chunk))


def _auto_threads(total: int, chunk: int) -> int:
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)), -(-total // chunk)))


def _why(reason: int) -> str:
    name = errno.errorcode.get(reason, str(reason))
    if reason in (errno.ENOMEM, errno.EFAULT, errno.ENOSPC):
        return f"memory ran out ({name}: /dev/shm, a control group or the host is full)"
    if reason == errno.EINVAL:
        return (
            f'this kernel cannot populate memory ahead of use ({name}): use Linux 5.14 or set arena.prefault = "lazy"'
        )
    return f"the kernel refused ({name}: {os.strerror(reason)})"
