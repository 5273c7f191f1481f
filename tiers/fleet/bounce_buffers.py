"""Bounce buffers: the only memory that a store's library is given.

A network library may write to a buffer after its call failed, and other machines may read and write memory that it has
registered. So pages are copied between the arena's frames and these buffers.
"""

from __future__ import annotations

import bisect
import mmap
from typing import Final

from pagetier.shm.safe_event import SafeCondition

_ALIGNMENT: Final = 4096


class BounceBuffer:
    """A buffer in use. Its memory is free again when it has been released as often as it has been retained.

    The one who lends it has it first, by ``with``. A call that uses it retains it until the call returns.
    """

    def __init__(self, owner: BounceBuffers, begin: int, length: int, memory: memoryview) -> None:
        self._owner = owner
        self.begin = begin
        self.length = length
        self.memory = memory
        self.users = 1

    def __enter__(self) -> BounceBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def retain(self) -> None:
        """Adds a user."""
        self._owner.change_users(self, 1)

    def release(self) -> None:
        """Removes a user."""
        self._owner.change_users(self, -1)


class BounceBuffers:
    """Memory of a fixed size, from which buffers of any length are lent. Thread-safe.

    Memory that was never lent is not allocated by the kernel; the lowest free place is used first.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.memory = memoryview(mmap.mmap(-1, self.nbytes))
        self._changed = SafeCondition()
        self._lent: list[tuple[int, int]] = []  # begin and end, sorted

    @property
    def lent_bytes(self) -> int:
        """The bytes that are lent."""
        with self._changed.lock:
            return sum(end - begin for begin, end in self._lent)

    def lend(self, nbytes: int, timeout: float) -> BounceBuffer | None:
        """Returns a buffer of this length; None if there is no room for it within `timeout` seconds."""
        length = max(_ALIGNMENT, -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        with self._changed.lock:
            if length > self.nbytes or not self._changed.wait_for(lambda: self._gap(length) >= 0, timeout):
                return None
            begin = self._gap(length)
            bisect.insort(self._lent, (begin, begin + length))
        return BounceBuffer(self, begin, length, self.memory[begin : begin + nbytes])

    def change_users(self, buffer: BounceBuffer, by: int) -> None:
        """Counts the users of a buffer, and frees it after the last one."""
        with self._changed.lock:
            buffer.users += by
            if not buffer.users:
                self._lent.remove((buffer.begin, buffer.begin + buffer.length))
                self._changed.wake_all()

    def _gap(self, length: int) -> int:
        """Returns where the lowest gap of this length begins, -1 if there is none."""
        begin = 0
        for used, end in self._lent:
            if used - begin >= length:
                return begin
            begin = end
        return begin if self.nbytes - begin >= length else -1
