"""The tier over any store of objects."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Space
from pagetier.tiers.base import (
    FleetState,
    Incoming,
    Outgoing,
    PageName,
    ReadOutcome,
    ReadResult,
    TierError,
    Written,
)
from pagetier.tiers.fleet.bounce_buffers import BounceBuffer, BounceBuffers
from pagetier.tiers.fleet.object_store import ABSENT, ObjectStore, length_and_bytes
from pagetier.tiers.fleet.objects import (
    HEADER_BYTES,
    MAGIC,
    PLAIN,
    VERSION,
    ObjectHeader,
    PageCodec,
    copy_to_frames,
    is_other,
    object_name,
    object_names,
    page_sizes,
    unpack_header,
    wrong_header,
)
from pagetier.tiers.fleet.store_calls import LateError, LateReads, StoreCalls

_T = TypeVar("_T")
_PUTS_AT_ONCE: Final = 4
_REMOVALS: Final = 10  # in
_REMOVING_S: Final = 0.05  # at least, when the time of a read is over
_REMOVALS_S: Final = 60.0  # more would empty the fleet where one host has faulty memory
_ABSENT: Final = ReadResult(ReadOutcome.ABSENT)
_EXACT: Final = ReadResult(ReadOutcome.EXACT)


class ObjectFleet:
    """A Fleet in a store of objects, one for each page.

    Args:
        store: The store.
        url: Its URL for people, without secrets.
        prefix: The first part of all names.
        codec: How the pages are protected.
        buffers: The bounce buffers, in the store's memory.
        calls: Runs the store's calls.
    """

    def __init__(
        self, store: ObjectStore, url: str, prefix: str, codec: PageCodec, buffers: BounceBuffers, calls: StoreCalls
    ) -> None:
        self._store = store
        self._url = url
        self._prefix = prefix
        self._codec = codec
        self._buffers = buffers
        self._calls = calls
        self._reads = LateReads()
        self._lock = threading.Lock()
        self._removals: collections.deque[float] = collections.deque(maxlen=_REMOVALS)
        self._damaged = self._foreign = self._present = self._other_versions = 0

    def locate(self, names: Sequence[PageName]) -> array[int]:
        """Returns the sizes of the pages. Raises TierError."""
        objects = [object_name(self._prefix, name) for name in names]
        return page_sizes(self.ask(lambda: self._store.sizes(objects)))

    def start_locate(
        self, keys: bytes, spaces: Sequence[int], table: Sequence[Space], reply: Callable[[array[int], str], None]
    ) -> None:
        """Starts to locate pages, given as for object_names(), and returns at once.

        `reply` takes their sizes and why the store failed, on the thread of the call: an engine waits for the answer,
        and each change of threads takes time. It is not called only if the call does not return. Raises TierError.
        """
        objects, until = object_names(self._prefix, keys, spaces, table), self._end_of_call()

        def locate() -> None:
            sizes, why = array("Q", bytes(8 * len(objects))), "the store's answer is not a size for each object"
            try:
                located = page_sizes(self._calls.twice(lambda: self._store.sizes(objects), until))
                if len(located) == len(objects):
                    sizes, why = located, ""
            except TierError as error:
                why = str(error)
            finally:  # a library may raise anything, and a question without an answer would count as asked for ever
                reply(sizes, why)

        self._calls.start(locate, None, until)

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Stores the pages that are not there, a few at once. A failure of the store ends the batch and is a reason."""
        names = [object_name(self._prefix, PageName(page.space.digest, page.key)) for page in pages]
        done, why = self._put_absent(names, pages) if pages else ({}, "")
        present = frozenset(number for number, is_new in done.items() if not is_new)
        with self._lock:
            self._present += len(present)
        return Written(
            stored=tuple(number in done for number in range(len(pages))),
            reasons=tuple("" if number in done else why for number in range(len(pages))),
            disk_bytes=sum(pages[number].size for number, is_new in done.items() if is_new),
            present=present,
        )

    def _put_absent(self, names: Sequence[str], pages: Sequence[Outgoing]) -> tuple[dict[int, bool], str]:
        """Returns for each page that is in the store whether it is new, and why the first of the others is not."""
        try:
            there = self.ask(lambda: self._store.exists(names))
        except TierError as error:
            return {}, str(error)
        done = {number: False for number in range(len(pages)) if there[number]}
        why = self._put_all([number for number in range(len(pages)) if not there[number]], names, pages, done)
        return done, why

    def _put_all(
        self, absent: Sequence[int], names: Sequence[str], pages: Sequence[Outgoing], done: dict[int, bool]
    ) -> str:
        """Adds the pages that are stored to `done`. Returns the first failure, after which no other put begins."""
        running: collections.deque[tuple[int, Callable[[], bool]]] = collections.deque()
        why, waiting = "", collections.deque(absent)
        while running or (waiting and not why):
            try:
                if waiting and not why and len(running) < _PUTS_AT_ONCE:
                    self._reads.wait(self._calls.timeout_s)
                    number = waiting.popleft()
                    running.append((number, self._begin_put(names[number], pages[number])))
                else:
                    number, end = running.popleft()
                    done[number] = end()
            except TierError as error:
                why = why or str(error)
        return why

    def _begin_put(self, name: str, page: Outgoing) -> Callable[[], bool]:
        """Starts to store a page, and returns the function that waits for its end and raises TierError."""
        until = self._end_of_call()
        with self._buffer(page.size, until) as buffer:
            self._codec.pack(PageName(page.space.digest, page.key), page.size, page.frames, buffer.memory)
            point("fleet.packed")
            buffer.retain()

        def put() -> bool:
            return self._store.put(name, buffer.memory)

        try:
            call = self._calls.start(put, buffer, until)
        except TierError:
            buffer.release()
            raise

        def end() -> bool:
            try:
                return self._calls.finish_or_repeat(call, put, buffer)
            finally:
                buffer.release()

        return end

    def read(self, page: Incoming) -> ReadResult:
        """Returns what became of a page, after filling its frames from what the store got and verifying them there.

        Waiting for a buffer, the call and its repetition take no longer together than one call may.
        """
        name, until = PageName(page.space, page.key), self._end_of_call()
        try:
            with self._reads.reading(), self._buffer(page.size, until) as buffer:
                result = self._received(name, page, buffer, until)
        except TierError as error:
            return ReadResult(ReadOutcome.FAILED, str(error))
        if result.outcome is ReadOutcome.DAMAGED:
            self._remove(object_name(self._prefix, name), until)
        return result

    def _received(self, name: PageName, page: Incoming, buffer: BounceBuffer, until: float) -> ReadResult:
        """Gets and judges an object. Raises TierError."""
        got = self._got(object_name(self._prefix, name), buffer, until)
        point("fleet.received")
        return self._judge(name, page, *length_and_bytes(got, buffer.memory))

    def _got(self, name: str, buffer: BounceBuffer, until: float) -> int | memoryview:
        def get() -> int | memoryview:
            return self._store.get(name, buffer.memory)

        return self._calls.finish_or_repeat(self._calls.start(get, buffer, until), get, buffer)

    def remove(self, page: PageName) -> None:
        """Removes a page's object if it is there. Raises TierError."""
        self.ask(lambda: self._store.remove(object_name(self._prefix, page)))

    def _judge(self, name: PageName, page: Incoming, length: int, data: memoryview) -> ReadResult:
        if length == ABSENT:
            return _ABSENT
        if length > len(data) and self._codec.codec != PLAIN:
            return self._reject_foreign()  # nothing of it was read
        if not HEADER_BYTES <= length <= len(data):
            return self._reject(f"the object has {length} bytes")
        header = unpack_header(bytes(data[:HEADER_BYTES]))  # once: others may write to the buffer
        if header.magic != MAGIC:
            return self._reject("the object has another header")
        if is_other(header, page.size, length):
            self._other_versions += header.version != VERSION
            return _ABSENT
        return self._judge_own(name, page, header, data[:length])

    def _judge_own(self, name: PageName, page: Incoming, header: ObjectHeader, data: memoryview) -> ReadResult:
        """Judges an object of this version, and fills the frames from it."""
        if (header.codec, header.key_id) != (self._codec.codec, self._codec.key_id):
            return self._reject_foreign()
        wrong = wrong_header(header, name, len(data))
        if not wrong:
            copy_to_frames(data[HEADER_BYTES:], page.frames)
            wrong = "" if self._codec.verify(header, page.frames) else "the checksum does not match"
        if not wrong:
            return _EXACT
        return self._reject(wrong) if self._is_own(header, name) else self._reject_foreign()

    def _is_own(self, header: ObjectHeader, name: PageName) -> bool:
        """Returns whether this fleet's key wrote an object, so that it is right for no other fleet."""
        return header.proof in (self._codec.proof(name), self._codec.proof(header.page)) or self._codec.codec == PLAIN

    def _reject(self, why: str) -> ReadResult:
        """Counts an object that no fleet can read."""
        with self._lock:
            self._damaged += 1
        return ReadResult(ReadOutcome.DAMAGED, why)

    def _remove(self, name: str, until: float) -> None:
        """Removes a damaged object, unless there were many, so that its page can be written again."""
        with self._lock:
            now = time.monotonic()
            if len(self._removals) == _REMOVALS and now - self._removals[0] <= _REMOVALS_S:
                return
            self._removals.append(now)
        with contextlib.suppress(TierError):  # an object that cannot be removed is found damaged again
            self.ask(lambda: self._store.remove(name), max(until, now + _REMOVING_S))

    def _reject_foreign(self) -> ReadResult:
        with self._lock:
            self._foreign += 1
        return _ABSENT

    def state(self) -> FleetState:
        """Returns the state without asking the store."""
        return FleetState(
            url=self._url,
            lent_bytes=self._buffers.lent_bytes,
            calls=self._calls.running,
            late=self._calls.late,
            damaged=self._damaged,
            foreign=self._foreign,
            present=self._present,
            note=self._note(),
        )

    def _note(self) -> str:
        if self._foreign:
            return "objects were written with another fleet key: compare remote.key_file"
        return "objects are of another version: choose another remote.prefix" if self._other_versions else ""

    def silent_s(self) -> float:
        """Returns for how many seconds calls have been running and none has returned."""
        return self._calls.silent_s()

    def close(self) -> None:
        """Closes the store, if it does so in time."""
        with contextlib.suppress(TierError):
            self.ask(self._store.close)

    def _end_of_call(self) -> float:
        """Returns when a call that begins now is given up."""
        return time.monotonic() + self._calls.timeout_s

    def _buffer(self, size: int, until: float) -> BounceBuffer:
        """Returns a bounce buffer for an object. Raises LateError."""
        nbytes = HEADER_BYTES + size
        buffer = self._buffers.lend(nbytes, until - time.monotonic())
        if buffer is None:
            why = "all bounce buffers are in use" if nbytes <= self._buffers.nbytes else "larger than remote.buffers"
            raise LateError(f"no bounce buffer for a page of {size} bytes: {why}")
        return buffer

    def ask(self, function: Callable[[], _T], until: float | None = None) -> _T:
        """Makes a call that needs no bounce buffer, twice if it fails at once. Raises TierError."""
        return self._calls.finish_or_repeat(self._calls.start(function, None, until), function)
