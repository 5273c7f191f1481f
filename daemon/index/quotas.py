"""The quotas of one process in the arena: frames reserved, pinned and read ahead, so that others have room, too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.index.engine_names import EngineNames
from pagetier.shm._core import SLOTS, AttachmentRecord, IndexHeader, Owner
from pagetier.shm.log_format import event
from pagetier.shm.page_rows import PAGE_KEYS, PAGE_REQUESTS
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome

log = logging.getLogger(__name__)

_Process: TypeAlias = tuple[int, int]  # 0 and the kernel ID, or pid and start time
_RESERVED: Final = "this process has reached its quota of reserved and unwritten pages: arena.process_share"
NO_LIMIT: Final = 2**64 - 1
_LEAST_FRAMES: Final = 1024  # a smaller arena serves one engine or a test
_NAMED: Final = 3  # attachments in one log line


def share_of(header: IndexHeader, share: float) -> int:
    """Returns the frames of a share of the arena, as the quota of one process; 0: there is no quota."""
    return int(header.frames * share) if header.frames >= _LEAST_FRAMES else 0


class StoreQuota:
    """The quota of frames that a process has reserved and not written yet. On the loop's thread only.

    All attachments of a process count together. To count them takes a walk over all open entries: 20 ms for a million.
    The result of the last walk is therefore remembered, and what was granted since is added to it. Only a request that
    would exceed the quota by this estimate causes another walk.
    """

    def __init__(self, owner: Owner, share: float) -> None:
        header = owner.header()
        self._owner = owner
        self._frame_bytes = header.frame_bytes
        self._frames = header.frames
        self._had: dict[_Process, int] = {}
        self._at_quota: set[_Process] = set()
        self.follow(share)

    def follow(self, share: float) -> None:
        """Applies another share from now on. What is reserved stays reserved."""
        self._most = share_of(self._owner.header(), share)
        self._had.clear()
        self._at_quota.clear()

    def pages(self, slot: int, pages: bytes) -> int:
        """Returns how many pages of a request, head first, the process may reserve now.

        Args:
            slot: A slot of the process.
            pages: Reserve.pages.
        """
        count = PAGE_REQUESTS.count(pages)
        if not self._most:
            return count
        process, frames = self._owner.process_of(slot), self._owner.frames_for(pages)
        if not self._owner.open_entries or len(self._had) > SLOTS:
            self._had.clear()  # also removes processes that have ended
        if not self._owner.open_entries:
            self._had[process] = 0
        if process not in self._had or frames + self._had[process] > self._most:
            if process in self._at_quota:
                return 0
            count = self._count_pages(slot, process, pages, frames)
            frames = self._owner.frames_for(PAGE_REQUESTS.first(pages, count))
        self._had[process] += frames
        return count

    def frames_left(self, slot: int) -> int:
        """Returns how many frames the process may reserve for certain, without a walk; NO_LIMIT without a quota."""
        if not self._most:
            return NO_LIMIT
        if not self._owner.open_entries:
            self._had.clear()
            return self._most
        return max(0, self._most - self._had.get(self._owner.process_of(slot), self._most))

    def add(self, slot: int, frames: int) -> None:
        """Counts frames that were reserved within frames_left()."""
        if self._most:
            process = self._owner.process_of(slot)
            self._had[process] = self._had.get(process, 0) + frames

    def why_refused(self, size: int) -> str:
        """Returns why a page of this size gets no frames: for now, or for good because the page alone is too large."""
        if not size:
            return "a page of 0 bytes cannot be stored"
        frames = -(-size // self._frame_bytes)
        if frames > self._frames:
            return self._never(size, f"the arena has {self._frames * self._frame_bytes}: set a larger arena.size")
        if 0 < self._most < frames:
            most = f"arena.process_share allows {self._most * self._frame_bytes} of the arena to a process"
            return self._never(size, f"{most}: set a larger share, or a larger arena.size")
        return _RESERVED

    @staticmethod
    def _never(size: int, limit: str) -> str:
        return f"a page of {size} bytes never fits, and waiting does not help: {limit}"

    def renew(self) -> None:
        """Lets processes at their quota be counted again, because they may have written pages.

        Called a few times a second.
        """
        self._at_quota.clear()

    def _count_pages(self, slot: int, process: _Process, pages: bytes, frames: int) -> int:
        """Returns how many pages, which need so many frames, the process may reserve by a walk over its open ones."""
        if frames <= self._count_left(slot, process):
            return PAGE_REQUESTS.count(pages)
        self._owner.settle()  # pages that were written in the meantime no longer count
        count = self._fitting(pages, self._count_left(slot, process))
        if not count and self._had[process]:  # a process without reserved pages only asked for a page that never fits
            self._at_quota.add(process)
        return count

    def _count_left(self, slot: int, process: _Process) -> int:
        self._had[process] = self._owner.frames_writing(slot) if self._owner.open_entries else 0
        return self._most - self._had[process]

    def _fitting(self, pages: bytes, frames: int) -> int:
        """Returns how many pages, head first, fit into so many frames."""
        for number, page in enumerate(PAGE_REQUESTS.read(pages)):
            frames -= -(-page.size // self._frame_bytes)
            if frames < 0:
                return number
        return PAGE_REQUESTS.count(pages)


class PinQuota:
    """The pin quota, which engines apply themselves, and a report of the pins when no page can be evicted.

    An engine pins pages without a message to the daemon: it counts its own pins and ends its matches at the quota. A
    process that writes the lock words itself can exceed it; the log names it when a store is rejected for lack of room.
    On the loop's thread only.
    """

    def __init__(self, owner: Owner, names: EngineNames, share: float) -> None:
        self._owner = owner
        self._names = names
        self._arena_bytes = owner.header().arena_bytes
        self._bounded = 0
        self._logged: set[tuple[int, int]] = set()
        self._throttle = LogThrottle(log, most=1)
        self.follow(share)

    def follow(self, share: float) -> None:
        """Applies another share from now on. Pages that are pinned stay pinned."""
        self._owner.set_pin_quota(share_of(self._owner.header(), share))

    def check(self) -> None:
        """Logs once for each attachment whose matches end at the quota. Cheap, for a call a few times a second."""
        before, self._bounded = self._bounded, self._owner.matches_at_quota()
        if self._bounded > before:
            attachments = [attachment for attachment in self._owner.attachments() if attachment.counts.bounded]
            for attachment in attachments:
                self._log_limited(attachment)
            self._logged &= {_name_of(attachment) for attachment in attachments}

    def full(self) -> None:
        """Logs at most once a minute which attachments have the arena pinned.

        Called when a store was rejected as full.
        """
        if not self._throttle.count_line():
            return
        attachments = sorted(self._owner.attachments_with_pins(), key=lambda one: one.pinned_bytes, reverse=True)
        if sum(one.pinned_bytes for one in attachments) * 2 >= self._arena_bytes:
            self._log_pins(attachments)

    def _log_limited(self, attachment: AttachmentRecord) -> None:
        if _name_of(attachment) in self._logged:
            return
        self._logged.add(_name_of(attachment))
        log.warning(
            "%s has reached its quota of pinned pages (arena.process_share): its matches end there",
            self._names.of(attachment),
            extra=event("pins_bounded", **self._facts(attachment)),
        )

    def _log_pins(self, attachments: list[AttachmentRecord]) -> None:
        first = attachments[0]
        named = ", ".join(f"{self._names.of(one)} {one.pinned_bytes >> 20} MiB" for one in attachments[:_NAMED])
        log.warning(
            "stores are rejected, most of the arena (%d MiB) is pinned: %s; end one of them or raise arena.size",
            self._arena_bytes >> 20,
            named,
            extra=event("arena_pinned", **self._facts(first), pinned_bytes=first.pinned_bytes),
        )

    def _facts(self, attachment: AttachmentRecord) -> dict[str, object]:
        """Returns the fields of a log line about an attachment."""
        return {
            "pid": self._names.pid_of(attachment),
            "engine": attachment.name,
            "slot": attachment.slot,
            "uid": attachment.uid,
        }


def _name_of(attachment: AttachmentRecord) -> tuple[int, int]:
    """Returns a key that identifies the attachment."""
    return attachment.slot, attachment.attached_ns


_READING: Final = "this user has reached its quota of pages that are read ahead: arena.process_share"
MOST_PREFETCHES: Final = 64
_FetchFunction: TypeAlias = Callable[[Fetch, Callable[[Fetched], None], int], int]


class _OpenPrefetch(msgspec.Struct, eq=False):
    """A request that reads ahead, with the frames that it was granted."""

    frames: int = 0


class PrefetchQuota:
    """The quota of frames into which pages are read for a user without an attachment. On the loop's thread only.

    It is that of a process that stores, arena.process_share. A small arena has no quota, but the number of requests is
    limited.
    """

    def __init__(self, header: IndexHeader, share: float) -> None:
        self._header = header
        self._reading: dict[int, list[_OpenPrefetch]] = {}
        self.follow(share)

    def follow(self, share: float) -> None:
        """Applies another share from now on."""
        self._most = share_of(self._header, share) or self._header.frames

    def enter(self, user: int, request: Fetch, reply: Callable[[Fetched], None], fetch: _FetchFunction) -> None:
        """Passes a request on to `fetch` with the frames that are left to the user, or replies that none are left."""
        reading = self._reading.setdefault(user, [])
        left = self._most - sum(each.frames for each in reading)
        if left <= 0 or len(reading) >= MOST_PREFETCHES:
            outcomes = bytes([FetchOutcome.NO_ROOM]) * PAGE_KEYS.count(request.keys)
            reply(Fetched(request.number, outcomes, _READING))
            return
        prefetch = _OpenPrefetch()
        reading.append(prefetch)

        def end(answer: Fetched) -> None:
            reading.remove(prefetch)
            if not reading:
                self._reading.pop(user, None)
            reply(answer)

        prefetch.frames = fetch(request, end, left)
