"""Pins the arena for a GPU in the background, several chunks at once, while copies already use the pinned chunks."""

from __future__ import annotations

import logging
import resource
from collections import deque
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.frames import Frames
from pagetier.shm.safe_event import SafeCondition

LARGEST_CHUNK: Final = 64 << 30
CHUNK: Final = 1 << 30
"""A thread pins some gigabytes a second (to be measured), so a chunk takes a fraction of a second. That is how soon the
first copies can begin, how fine the progress is, and how long close() may wait. The cost of a call is small beside it,
and a terabyte has a thousand chunks.
"""
_PAGE: Final = 4096
_LOG: Final = logging.getLogger(__name__)

Registering = Callable[[int, int], None]
"""Pins memory, given its address and size. Raises RuntimeError (such as DeviceError), OSError or MemoryError on
failure.
"""

Unregistering = Callable[[int], None]
"""Unpins the memory that begins at an address. Raises as Registering does."""


class Pinning:
    """Memory that is pinned in the background from construction to close(). Thread-safe.

    If a chunk cannot be pinned, one line is logged, the pinned chunks stay pinned, and no more are tried; the other
    chunks are then never ready, which is no error. A frame lies within one chunk, since the sizes of both are powers of
    two. Bytes that span two chunks are two registrations for a GPU's driver, which rejects a single DMA of them even if
    both are ready.
    """

    def __init__(
        self,
        address: int,
        nbytes: int,
        register: Registering,
        unregister: Unregistering,
        chunk: int = CHUNK,
        threads: int = 4,
    ) -> None:
        """Starts pinning from the first chunk on.

        Args:
            address: The address of the memory, page-aligned. The memory stays mapped until close() has returned.
            nbytes: The size of the memory.
            register: Pins a chunk; called from several threads at once.
            unregister: Unpins a chunk by its address; called from several threads at once.
            chunk: The size of a chunk in bytes, a power of two from 4 KiB to 64 GiB; see CHUNK.
            threads: The number of threads that pin.

        Raises:
            ValueError: An argument is out of range.
        """
        if not _PAGE <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
            raise ValueError(f"chunk = {chunk} is not a power of two from {_PAGE} to {LARGEST_CHUNK}")
        if min(address, nbytes) < 0 or threads < 1:
            raise ValueError(f"cannot pin {nbytes} bytes at {address:#x} with {threads} threads")
        if address % _PAGE:
            raise ValueError(f"the address {address:#x} is not aligned to a page of {_PAGE} bytes")
        self.address, self.nbytes, self.chunk = address, nbytes, chunk
        self._register, self._unregister = register, unregister
        self._sizes = [min(chunk, nbytes - at) for at in range(0, nbytes, chunk)]
        self._changed = SafeCondition()
        self._lock = self._changed.lock
        self._waiting = deque(range(len(self._sizes)))
        self._pinned: set[int] = set()
        self._trying = 0
        self._failure = ""
        self._closing = self._stuck = False
        self._missing = self._count_missing()
        self._threads = [
            Thread(target=self._work, name="pagetier-pinning", daemon=True)
            for _ in range(min(threads, len(self._sizes)))
        ]
        for thread in self._threads:
            thread.start()

    def ready(self, offset: int, nbytes: int) -> bool:
        """Returns whether these bytes, counted from `address`, are pinned.

        Raises:
            ValueError: The bytes exceed the memory.
        """
        if min(offset, nbytes) < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"bytes {offset} to {offset + nbytes} are not within the {self.nbytes} bytes of the memory"
            )
        missing = self._missing
        return not nbytes or bool(missing[-(-(offset + nbytes) // self.chunk)] == missing[offset // self.chunk])

    def ready_frames(self, frames: Frames) -> bool:
        """Returns whether all of these frames are pinned, where the memory is their arena. Never waits."""
        missing = self._missing
        if not missing[-1]:
            return True
        begins = frames.table.astype(np.int64) * frames.arena.frame_bytes
        ends = begins + frames.arena.frame_bytes
        return bool((missing[-(-ends // self.chunk)] == missing[begins // self.chunk]).all())

    @property
    def progress(self) -> float:
        """The pinned share of the bytes, from 0 to 1."""
        with self._lock:
            return self._pinned_bytes() / self.nbytes if self.nbytes else 1.0

    @property
    def state(self) -> str:
        """The progress as text for people."""
        with self._lock:
            done = f"{_gib(self._pinned_bytes())} of {_gib(self.nbytes)}"
            if self._closing:
                return "closed" if not self._pinned else f"unpinning: {done} left"
            if self._failure:
                return f"pinned {done}, then failed: {self._failure}"
            return f"pinned {done}" if self._settled() else f"pinning: {done}"

    def wait(self, seconds: float) -> bool:
        """Waits until everything is pinned or pinning has failed; returns False after `seconds`."""
        with self._lock:
            return self._changed.wait_for(self._settled, seconds)

    def close(self) -> bool:
        """Stops pinning, waits for calls in progress and unpins everything. No copy may be in flight.

        May be called several times, also at once; each call returns after the end.

        Returns:
            False if the driver could not unpin everything: that memory must stay mapped until the process ends.
        """
        with self._lock:
            self._closing = True
            self._waiting.clear()
            self._update()
        for thread in self._threads:
            thread.join()
        return not self._stuck

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- in the threads -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Pins, then unpins: the same threads do both, since none can be started while an interpreter exits."""
        while (chunk := self._next()) is not None:
            self._pin(chunk)
        with self._lock:
            self._changed.wait_for(lambda: self._closing)
        while (chunk := self._last()) is not None:
            self._unpin(chunk)

    def _next(self) -> int | None:
        with self._lock:
            if not self._waiting:
                return None
            self._trying += 1
            return self._waiting.popleft()

    def _pin(self, chunk: int) -> None:
        failure = ""
        try:
            self._register(self.address + chunk * self.chunk, self._sizes[chunk])
        except (RuntimeError, OSError, MemoryError) as error:
            failure = str(error) or type(error).__name__
        with self._lock:
            self._trying -= 1
            if failure:
                self._give_up(failure)
            else:
                self._pinned.add(chunk)
            self._update()

    def _give_up(self, failure: str) -> None:
        first, self._failure = not self._failure, self._failure or failure
        self._waiting.clear()
        if first and not self._closing:
            _LOG.warning(
                "cannot pin all of the arena, copies of the rest use a slower path: %s (%s)", failure, _limit()
            )

    def _last(self) -> int | None:
        with self._lock:
            return self._pinned.pop() if self._pinned else None

    def _unpin(self, chunk: int) -> None:
        try:
            self._unregister(self.address + chunk * self.chunk)
        except (RuntimeError, OSError) as error:
            self._stuck = True
            _LOG.warning("cannot unpin a chunk of the arena, it stays mapped: %s", error)

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _update(self) -> None:
        self._missing = self._count_missing()
        self._changed.wake_all()

    def _count_missing(self) -> npt.NDArray[np.int64]:
        """Returns for each chunk how many unusable ones are before it.

        The table is a new one, since the old one is read without the lock.
        """
        missing = np.ones(len(self._sizes), np.int64)
        missing[[] if self._closing else list(self._pinned)] = 0
        return np.concatenate([np.zeros(1, np.int64), missing.cumsum()])

    def _settled(self) -> bool:
        return not self._waiting and not self._trying

    def _pinned_bytes(self) -> int:
        return sum(self._sizes[chunk] for chunk in self._pinned)


def _limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return "RLIMIT_MEMLOCK is unlimited, so it is not the reason"
    return f"RLIMIT_MEMLOCK is {_gib(limit)}: raise it with ulimit -l or LimitMEMLOCK= in the systemd unit"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"
