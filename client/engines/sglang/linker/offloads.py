"""Stores in progress, in the order in which SGLang began them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pagetier.client.async_copy.store_job import StoreHandle
from pagetier.client.store_result import Outcome
from pagetier.shm.clock import Deadline

_STORE_S: Final = 10.0  # SGLang cannot evict the pages before that
_CANCEL_S: Final = 5.0
_DONE: Final = frozenset((Outcome.STORED, Outcome.PRESENT, Outcome.LEFT_OUT))


class Offload:
    """The stores of all groups of one node of SGLang's tree.

    Args:
        stores: The stores; None if they could not begin, so that the offload has failed.
    """

    def __init__(self, stores: Sequence[StoreHandle] | None) -> None:
        self._stores, self._deadline = stores, Deadline(_STORE_S)

    def poll(self) -> bool:
        """Returns whether no store reads the device memory any more. Cancels stores that take too long."""
        stores = self._stores or ()
        if all(store.ended for store in stores):
            return True
        if self._deadline.is_over:
            self.cancel()
        return False

    def cancel(self) -> None:
        """Abandons what is not readable yet."""
        for store in self._stores or ():
            store.cancel()

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until all stores have ended, and returns whether they have."""
        deadline = Deadline(timeout)
        return all(store.wait_ended(deadline.left) for store in self._stores or ())

    @property
    def stored(self) -> bool:
        """Whether all pages can be loaded by every process or were left out, once all stores have ended.

        Otherwise SGLang offers them again with the next pages of their prompt. The daemon would take that of pages
        that were left out for another use: they are offered again when they are computed again.
        """
        if self._stores is None:
            return False
        return all(_DONE.issuperset(store.wait(0.0).codes) for store in self._stores)


class Offloads:
    """A queue of offloads. Their results are taken in the order in which they began, as SGLang requires.

    Attributes:
        begun: The number of offloads so far.
    """

    def __init__(self) -> None:
        self._pending: deque[Offload] = deque()
        self.begun = 0

    @property
    def ended(self) -> int:
        """The number of offloads whose results were taken."""
        return self.begun - len(self._pending)

    def append(self, offload: Offload) -> None:
        """Adds the newest offload."""
        self._pending.append(offload)
        self.begun += 1

    def completed(self) -> int:
        """Returns how many offloads have ended, up to the first one that has not."""
        count = 0
        for offload in self._pending:
            if not offload.poll():
                break
            count += 1
        return count

    def pop(self) -> bool:
        """Removes the oldest offload, which has ended, and returns whether all of its pages are stored or left out."""
        return self._pending.popleft().stored

    def reset(self) -> bool:
        """Abandons all offloads, and returns whether nothing reads the device memory any more."""
        for offload in self._pending:
            offload.cancel()
        deadline = Deadline(_CANCEL_S)
        ended = [offload.wait(deadline.left) for offload in self._pending]
        self._pending.clear()
        return all(ended)
