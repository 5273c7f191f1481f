"""Populating the arena: all its memory taken at start, in parallel, so that none is missing later."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import msgspec

from pagetier.daemon.common.progress import Progress, no_progress
from pagetier.shm.units import format_size

# small enough to stop soon and to show progress, large enough that starting one costs nothing
CHUNK_BYTES = 32 << 20
# zeroing memory saturates a host's memory bus with fewer threads than it has cores
_MOST_THREADS = 16

Populate = Callable[[int, int], None]
"""`populate(offset, length)` takes memory for that part of the arena, without the GIL; raises OSError if it can not."""


class Prefaulted(msgspec.Struct, frozen=True, kw_only=True):
    """What was populated, in bytes, and in which time; less than wanted only if somebody stopped it."""

    nbytes: int
    wanted: int
    seconds: float
    threads: int

    @property
    def complete(self) -> bool:
        """Whether all was populated."""
        return self.nbytes == self.wanted

    def __str__(self) -> str:
        rate = format_size(int(self.nbytes / max(self.seconds, 1e-9)))
        took = f"{self.seconds:.1f} s, {rate}/s, {self.threads} threads"
        return f"{format_size(self.nbytes)} of {format_size(self.wanted)} populated in {took}"


class PrefaultError(Exception):
    """The arena could not be populated; the message is for people. `errno` is the kernel's, `nbytes` were done."""

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
    """Populate bytes 0 to `total` by calls of `populate` for chunks, each byte once, on `threads` threads (0: auto).

    `progress` is called by the calling thread only. Setting `stop` ends it soon, with less than `total` done. Raises
    PrefaultError if memory runs out, after all threads have ended; what was populated by then stays so.
    """
    work = _Work(populate, total, stop or threading.Event())
    count = threads or _auto_threads(total, chunk)
    began = time.monotonic()
    with ThreadPoolExecutor(count, thread_name_prefix="prefault") as pool:
        try:
            work.watch([pool.submit(work.fill, *part) for part in _chunks(total, chunk)], progress)
        finally:
            work.halt.set()
    if work.error is not None:
        raise PrefaultError(work.error.errno or errno.EIO, work.done, total) from work.error
    return Prefaulted(nbytes=work.done, wanted=total, seconds=time.monotonic() - began, threads=count)


class _Work:
    """What the threads of one `prefault` share. Only the calling thread writes `done` and `error`, in `watch`."""

    def __init__(self, populate: Populate, total: int, stop: threading.Event) -> None:
        self.populate = populate
        self.total = total
        self.stop = stop
        self.halt = threading.Event()
        self.done = 0
        self.error: OSError | None = None

    def fill(self, offset: int, length: int) -> int:
        """Bytes populated: none once somebody wants an end."""
        if self.halt.is_set() or self.stop.is_set():
            return 0
        try:
            self.populate(offset, length)
        except BaseException:
            self.halt.set()
            raise
        return length

    def watch(self, chunks: list[Future[int]], progress: Progress) -> None:
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
        return f"memory ran out ({name}: /dev/shm or a control group is full by now, or the host is)"
    if reason == errno.EINVAL:
        return f'this kernel can not populate memory ahead ({name}: Linux 5.14 can; set arena.prefault = "lazy")'
    return f"the kernel refused ({name}: {os.strerror(reason)})"
