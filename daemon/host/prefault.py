"""Populates the arena: allocates all of its memory at the start, in parallel, so that none is missing later."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from pagetier.daemon.common.progress import Progress, no_progress
from pagetier.shm import clock
from pagetier.shm.helper_threads import start_helpers
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
        threads: The most threads; 0: one for each core and chunk, at most 16. If none can be started, the caller works.
        progress: Called with the bytes done and the total, by the calling thread only.
        stop: Setting it ends the work soon, with less than `total` done.
        chunk: Bytes of a chunk.

    Returns:
        What was populated.

    Raises:
        PrefaultError: Memory ran out. All threads have ended, and what was populated stays.
    """
    work = _Work(populate, total, chunk, stop or threading.Event())
    count = threads or _auto_threads(total, chunk)
    began = clock.now()
    with ThreadPoolExecutor(count, thread_name_prefix="prefault") as pool:
        try:
            helpers = start_helpers(pool, work.run, count)
            work.watch(len(helpers), progress)
        finally:
            work.halt.set()
    if work.error is not None:
        raise PrefaultError(work.error.errno or errno.EIO, work.done, total) from work.error
    return Prefaulted(nbytes=work.done, wanted=total, seconds=clock.now() - began, threads=len(helpers) or 1)


class _Work:
    """The state that the threads of one prefault() share.

    Only the calling thread writes `done` and `error`, in watch().
    """

    def __init__(self, populate: Populate, total: int, chunk: int, stop: threading.Event) -> None:
        self.populate = populate
        self.total = total
        self.offsets = range(0, total, chunk)
        self.left = iter(self.offsets)
        self.outcomes: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self.stop = stop
        self.halt = threading.Event()
        self.done = 0
        self.error: OSError | None = None

    def run(self) -> None:
        """Populates chunks until none is left."""
        for offset in self.left:
            self.outcomes.put(self._populated(offset))

    def _populated(self, offset: int) -> int | BaseException:
        """Populates a chunk and returns its bytes, 0 once the work is to end, or the error."""
        if self.halt.is_set() or self.stop.is_set():
            return 0
        length = min(self.offsets.step, self.total - offset)
        try:
            self.populate(offset, length)
        except BaseException as error:  # noqa: BLE001  watch() raises it
            self.halt.set()
            return error
        return length

    def watch(self, helpers: int, progress: Progress) -> None:
        """Counts the chunks that the helpers finish, or populates them if there are none, and keeps the first error."""
        progress(0, self.total)
        for _ in self.offsets:
            self._count(self.outcomes.get() if helpers else self._populated(next(self.left)))
            progress(self.done, self.total)

    def _count(self, outcome: int | BaseException) -> None:
        if isinstance(outcome, OSError):
            self.error = self.error or outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            self.done += outcome


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
