"""The calls of a store that concern objects: with a time limit, a bounce buffer where they need one, and judged."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point
from pagetier.tiers.base import PageName, ReadResult, TierError
from pagetier.tiers.fleet.bounce_buffers import BounceBuffer, BounceBuffers
from pagetier.tiers.fleet.object_judge import ObjectJudge
from pagetier.tiers.fleet.object_store import ObjectStore, length_and_bytes
from pagetier.tiers.fleet.objects import HEADER_BYTES, object_name
from pagetier.tiers.fleet.store_calls import LateError, StoreCalls

_T = TypeVar("_T")
_REMOVALS: Final = 10  # in
_REMOVALS_S: Final = 60.0  # more would empty the fleet where one host has faulty memory
_REMOVING_S: Final = 0.05  # at least, when the time of a read is over


class ObjectCalls:
    """Calls of one store for the objects below one prefix. Thread-safe."""

    def __init__(
        self, store: ObjectStore, prefix: str, judge: ObjectJudge, buffers: BounceBuffers, calls: StoreCalls
    ) -> None:
        self.store = store
        self.calls = calls
        self._prefix = prefix
        self._judge = judge
        self._buffers = buffers
        self._lock = threading.Lock()
        self._removals: collections.deque[float] = collections.deque(maxlen=_REMOVALS)

    def name(self, page: PageName) -> str:
        """Returns the name of a page's object."""
        return object_name(self._prefix, page)

    def ask(self, function: Callable[[], _T], deadline: Deadline | None = None) -> _T:
        """Makes a call that needs no bounce buffer, twice if it fails at once. Raises TierError."""
        return self.calls.finish_or_repeat(self.calls.start(function, None, deadline), function)

    def deadline(self) -> Deadline:
        """Returns when a call that begins now is given up."""
        return Deadline(self.calls.timeout_s)

    def fits(self, size: int) -> bool:
        """Returns whether the object of a page of this size fits into the bounce buffers."""
        return HEADER_BYTES + size <= self._buffers.nbytes

    def buffer(self, size: int, deadline: Deadline) -> BounceBuffer:
        """Returns a bounce buffer for the object of a page of this size. Raises LateError."""
        buffer = self._buffers.lend(HEADER_BYTES + size, deadline.left)
        if buffer is None:
            raise LateError(f"no bounce buffer for a page of {size} bytes: all bounce buffers are in use")
        return buffer

    def get(
        self, page: PageName, size: int, frames: Sequence[memoryview], deadline: Deadline
    ) -> tuple[int, ReadResult]:
        """Gets a page's object and returns its length and what it is; see ObjectJudge.judge(). Raises TierError."""
        name = self.name(page)
        with self.buffer(size, deadline) as buffer:

            def get() -> int | memoryview:
                return self.store.get(name, buffer.memory)

            # A call that is late keeps its thread and its buffer, which it may still write to, and the read is a
            # failure. A call that failed at once is repeated while half of its time is left.
            got = self.calls.finish_or_repeat(self.calls.start(get, buffer, deadline), get, buffer)
            point("fleet.received")
            # The judge copies the bytes to the frames first and verifies them there: other hosts and the library may
            # change the buffer at any time, but not the frames.
            length, data = length_and_bytes(got, buffer.memory)
            return length, self._judge.judge(page, size, frames, length, data)

    def remove(self, page: PageName) -> None:
        """Removes a page's object if it is there. Raises TierError."""
        self.ask(lambda: self.store.remove(self.name(page)))

    def remove_damaged(self, page: PageName, deadline: Deadline) -> bool:
        """Removes a damaged object, unless there were many. Returns whether the page can be written again."""
        with self._lock:
            now = clock.now()
            if len(self._removals) == _REMOVALS and now - self._removals[0] <= _REMOVALS_S:
                return False
            self._removals.append(now)
        with contextlib.suppress(TierError):  # an object that cannot be removed is found damaged again
            self.ask(lambda: self.store.remove(self.name(page)), Deadline(max(deadline.left, _REMOVING_S)))
            return True
        return False
