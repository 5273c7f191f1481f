"""Pinning the arena for a GPU: chunk by chunk, several at once, in the background, while copies already use what is."""

from __future__ import annotations

import logging
import resource
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from .frames import Frames

LARGEST_CHUNK: Final = 64 << 30
CHUNK: Final = 1 << 30
"""At some gigabytes a second that a thread pins, which is to be measured, a chunk takes a fraction of a second: so soon
do first copies begin, so fine is the progress, and so long may close() wait. A call's own cost is small beside that,
and a terabyte has a thousand chunks."""
_PAGE: Final = 4096
_LOG: Final = logging.getLogger(__name__)

Registering = Callable[[int, int], None]
"""Pins memory: address and bytes. Raises RuntimeError (DeviceError is one), OSError or MemoryError if it can not be."""

Unregistering = Callable[[int], None]
"""Undoes it for the memory that begins at an address. Raises as Registering does."""


class Pinning:
    """Memory that is being pinned from now on, and is pinned until close(). May be used from any thread.

    If a chunk can not be pinned, one line is logged, the chunks that are pinned stay so, and no more are tried; that is
    no error, the other chunks are just never ready. A frame is in one chunk, as both are powers of two; what spans two
    chunks is two pieces of memory for a GPU's driver, even if both are ready, and a single DMA of it is refused.
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
        """Begins at once, with the chunks at the front.

        Args:
            address: of the memory, where a page begins; it stays mapped until close() has returned.
            nbytes: how much.
            register: called from several threads at once.
            unregister: with the addresses that `register` was called with, from several threads at once, too.
            chunk: bytes, a power of two from 4 KiB to 64 GiB; see CHUNK.
            threads: that pin at once.

        Raises:
            ValueError: if the numbers are none of these.
        """
        if not _PAGE <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
            raise ValueError(f"chunks of {chunk} bytes: a power of two from {_PAGE} to {LARGEST_CHUNK}")
        if min(address, nbytes) < 0 or threads < 1:
            raise ValueError(f"{nbytes} bytes at {address:#x}, pinned by {threads} threads")
        if address % _PAGE:
            raise ValueError(f"memory at {address:#x}: two chunks would share a page of {_PAGE} bytes")
        self.address, self.nbytes, self.chunk = address, nbytes, chunk
        self._register, self._unregister = register, unregister
        self._sizes = [min(chunk, nbytes - at) for at in range(0, nbytes, chunk)]
        self._changed = Condition()
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
        """Whether all these bytes, counted from `address`, are pinned. Raises ValueError for bytes beyond the end."""
        if min(offset, nbytes) < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of {self.nbytes}")
        missing = self._missing
        return not nbytes or bool(missing[-(-(offset + nbytes) // self.chunk)] == missing[offset // self.chunk])

    def ready_frames(self, frames: Frames) -> bool:
        """Whether all of these frames are pinned, where the memory is their arena. Never waits."""
        missing = self._missing
        if not missing[-1]:
            return True
        begins = frames.table.astype(np.int64) * frames.arena.frame_bytes
        ends = begins + frames.arena.frame_bytes
        return bool((missing[-(-ends // self.chunk)] == missing[begins // self.chunk]).all())

    @property
    def progress(self) -> float:
        """Which share of the bytes is pinned, from 0 to 1."""
        with self._changed:
            return self._pinned_bytes() / self.nbytes if self.nbytes else 1.0

    @property
    def state(self) -> str:
        """How far it is, in words for people."""
        with self._changed:
            done = f"{_gib(self._pinned_bytes())} of {_gib(self.nbytes)}"
            if self._closing:
                return "closed" if not self._pinned else f"unpinning: {done} left"
            if self._failure:
                return f"pinned {done}, then failed: {self._failure}"
            return f"pinned {done}" if self._settled() else f"pinning: {done}"

    def wait(self, seconds: float) -> bool:
        """Until all is pinned, or nothing more is tried; False after so many seconds."""
        with self._changed:
            return self._changed.wait_for(self._settled, seconds)

    def close(self) -> bool:
        """Stops pinning, waits for the calls that are under way, and unpins all. For when no copy is in flight.

        False if the driver could not unpin everything: that memory has to stay mapped until the process ends. May be
        called several times, at once, too; each call returns after the end.
        """
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._tell()
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
        """The same threads unpin: none can be started any more when an interpreter ends."""
        while (chunk := self._next()) is not None:
            self._pin(chunk)
        with self._changed:
            self._changed.wait_for(lambda: self._closing)
        while (chunk := self._last()) is not None:
            self._unpin(chunk)

    def _next(self) -> int | None:
        with self._changed:
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
        with self._changed:
            self._trying -= 1
            if failure:
                self._give_up(failure)
            else:
                self._pinned.add(chunk)
            self._tell()

    def _give_up(self, failure: str) -> None:
        first, self._failure = not self._failure, self._failure or failure
        self._waiting.clear()
        if first and not self._closing:
            _LOG.warning(
                "the arena can not be pinned whole, copies go a slower way where it is not: %s (%s)", failure, _limit()
            )

    def _last(self) -> int | None:
        with self._changed:
            return self._pinned.pop() if self._pinned else None

    def _unpin(self, chunk: int) -> None:
        try:
            self._unregister(self.address + chunk * self.chunk)
        except (RuntimeError, OSError) as error:
            self._stuck = True
            _LOG.warning("a chunk of the arena can not be unpinned: %s", error)

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _tell(self) -> None:
        self._missing = self._count_missing()
        self._changed.notify_all()

    def _count_missing(self) -> npt.NDArray[np.int64]:
        """Chunks before each that are not to be used; a new table, as the old one is read without the lock."""
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
        return "RLIMIT_MEMLOCK is not the reason: it is unlimited"
    return f"RLIMIT_MEMLOCK is {_gib(limit)}: raise it, by ulimit -l or LimitMEMLOCK= of a systemd unit"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"
