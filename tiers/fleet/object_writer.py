"""Writes pages to a store of objects: those that are absent, and those whose object is no page."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from pagetier.shm.failpoints import point
from pagetier.tiers.base import TOO_LARGE, Outgoing, PageName, ReadOutcome, TierError
from pagetier.tiers.fleet.object_calls import ObjectCalls
from pagetier.tiers.fleet.object_lengths import PageSizes
from pagetier.tiers.fleet.object_store import ABSENT
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.fleet.page_packer import PagePacker
from pagetier.tiers.fleet.store_calls import LateReads

_PUTS_AT_ONCE: Final = 4
_LENGTHS_AT_ONCE: Final = 64  # of more, S3 is asked for some only


class ObjectWriter:
    """Writes one batch of pages after the other. Thread-safe."""

    def __init__(self, objects: ObjectCalls, packer: PagePacker, reads: LateReads) -> None:
        self._objects = objects
        self._packer = packer
        self._reads = reads

    def write(self, pages: Sequence[Outgoing]) -> tuple[dict[int, int], dict[int, str]]:
        """Returns for each page that is in the store its new bytes, 0 if it was there, and why tried ones are not."""
        # 1. Ask in one call which pages are there: what another host has stored needs no upload.
        batch = _Batch(self._objects, self._packer.sizes, pages)
        try:
            absent = batch.absent()
        except TierError as error:
            return {}, dict.fromkeys(range(len(pages)), str(error))
        # 2. Put the absent ones that can be. After a failure the others are not tried: each could wait for its timeout.
        too_large = [number for number in absent if not self._objects.fits(pages[number].size)]
        self._put_all([number for number in absent if number not in too_large], batch)
        # 3. Look at objects that were there but may be torn. Only a host that has the page can replace them, and
        # nothing waits for a write, so that is done here and not by reads.
        if not batch.failed and (broken := batch.broken()):
            self._put_all(broken, batch)
        return batch.done, batch.failed | dict.fromkeys(too_large, TOO_LARGE)

    def _put_all(self, absent: Sequence[int], batch: _Batch) -> None:
        """Puts pages and notes which are stored and which failed. After the first failure no other put begins."""
        running: collections.deque[tuple[int, Callable[[], int]]] = collections.deque()
        waiting = collections.deque(absent)
        while running or (waiting and not batch.failed):
            begins = waiting and not batch.failed and len(running) < _PUTS_AT_ONCE
            number = waiting[0] if begins else running[0][0]
            try:
                if begins:
                    self._reads.wait(self._objects.calls.timeout_s)
                    running.append((number, self._begin_put(batch.pages[waiting.popleft()])))
                else:
                    batch.done[number] = running.popleft()[1]()
            except TierError as error:
                batch.failed[number] = str(error)

    def _begin_put(self, page: Outgoing) -> Callable[[], int]:
        """Starts to store a page.

        Returns:
            The function that waits for the end, and returns the new bytes in the store without the header or raises
            TierError.

        Raises:
            TierError: There is no buffer or no thread for it.
        """
        deadline, page_name = self._objects.deadline(), _name(page)
        name, calls = self._objects.name(page_name), self._objects.calls
        # The object is packed into a bounce buffer, with its checksum or its tag computed from the frames. The store's
        # library never sees the arena: it may still use the buffer after the call was given up.
        with self._objects.buffer(page.size, deadline) as buffer:
            length = self._packer.pack(page_name, page.size, page.frames, buffer.memory)
            point("fleet.packed")
            buffer.retain()

        # The put creates the object as a whole or fails; no host replaces an object. It is the same call for S3, a
        # folder and Mooncake: see put() in s3_object_store.py and its neighbours.
        def put() -> bool:
            return self._packer.put(lambda: bool(self._objects.store.put(name, buffer.memory[:length])), length)

        try:
            call = calls.start(put, buffer, deadline)
        except TierError:
            buffer.release()
            raise

        def end() -> int:
            try:
                return (length - HEADER_BYTES) * calls.finish_or_repeat(call, put, buffer)
            finally:
                buffer.release()

        return end


class _Batch:
    """The pages of one write: `done` has the new bytes of those in the store, `failed` why others are not."""

    def __init__(self, objects: ObjectCalls, sizes: PageSizes, pages: Sequence[Outgoing]) -> None:
        self._objects = objects
        self._sizes = sizes
        self.pages = pages
        self._names = [objects.name(_name(page)) for page in pages]
        self.done: dict[int, int] = {}
        self.failed: dict[int, str] = {}

    def absent(self) -> list[int]:
        """Returns which pages the store does not have, and notes the others. Raises TierError."""
        there = self._objects.ask(lambda: [bool(one) for one in self._objects.store.exists(self._names)])
        if len(there) != len(self._names):
            raise TierError("the store's answer is not one for each object")
        self.done = {number: 0 for number, is_there in enumerate(there) if is_there}
        return [number for number, is_there in enumerate(there) if not is_there]

    def broken(self) -> list[int]:
        """Returns which of the objects that were there are no pages, after removing them.

        Questions do not show an object that is too short, and no host can read one that is larger than its arena: only
        a host that has the page can find these.
        """
        there = [number for number, nbytes in self.done.items() if not nbytes]
        broken = [number for number in self._odd(there) if self._can_be_replaced(self.pages[number])]
        for number in broken:
            del self.done[number]
        return broken

    def _odd(self, there: Sequence[int]) -> Iterator[int]:
        """Yields the objects that may be of another size than the page; none if the store does not answer."""
        for at in range(0, len(there), _LENGTHS_AT_ONCE):
            some = there[at : at + _LENGTHS_AT_ONCE]
            names = [self._names[number] for number in some]
            try:
                lengths = self._objects.ask(partial(self._objects.store.sizes, names))
            except TierError:
                return
            sizes = self._sizes.of(lengths, [self.pages[number].space.digest for number in some])
            yield from (number for number, size in zip(some, sizes, strict=False) if size != self.pages[number].size)

    def _can_be_replaced(self, page: Outgoing) -> bool:
        deadline = self._objects.deadline()
        try:
            length, result = self._objects.get(_name(page), page.size, (), deadline)
        except TierError:
            return False
        if result.outcome is ReadOutcome.DAMAGED:
            return self._objects.remove_damaged(_name(page), deadline)
        return length == ABSENT


def _name(page: Outgoing) -> PageName:
    return PageName(page.space.digest, page.key)
