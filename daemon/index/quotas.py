"""Quotas of one process, in reserved frames and in slots, so that a hanging process leaves room for others."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from pagetier.daemon.index.tenants import Tenants
from pagetier.shm._core import KEY_BYTES, SLOTS, AttachmentRecord, IndexHeader, Owner, ReserveOutcome
from pagetier.shm.process import Process
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome

_Process: TypeAlias = tuple[int, int]  # 0 and the kernel ID, or pid and start time
_SIZE: Final = struct.Struct("<Q")
_RESERVED: Final = "this process has reached its quota of reserved and unwritten pages: store.share"
NO_LIMIT: Final = 2**64 - 1
_LEAST_FRAMES: Final = 1024  # a smaller arena serves one engine or a test


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
        self._most = share_of(header, share)
        self._had: dict[_Process, int] = {}
        self._at_quota: set[_Process] = set()

    def pages(self, slot: int, sizes: bytes) -> int:
        """Returns how many pages of a chain, head first, the process may reserve now.

        Args:
            slot: A slot of the process.
            sizes: The size of each page, u64.
        """
        each = array("Q", sizes)
        if not self._most:
            return len(each)
        if not self._owner.open_entries or len(self._had) > SLOTS:
            self._had.clear()  # also removes processes that have ended
        process, frames = self._owner.process_of(slot), self._glance(each)
        if frames + self._had.get(process, self._most) <= self._most:
            self._had[process] = self._had.get(process, 0) + frames
            return len(each)
        pages = self._count_pages(slot, process, each)
        self._had[process] = self._had.get(process, 0) + self._glance(each[:pages])
        return pages

    def room(self, slot: int) -> int:
        """Returns how many frames the process may reserve for certain, without a walk; NO_LIMIT without a quota."""
        if not self._most:
            return NO_LIMIT
        if not self._owner.open_entries:
            self._had.clear()
            return self._most
        return max(0, self._most - self._had.get(self._owner.process_of(slot), self._most))

    def add(self, slot: int, pages: int, nbytes: int) -> None:
        """Counts pages that were reserved within room(), with at most one partly used frame each."""
        if self._most:
            process = self._owner.process_of(slot)
            self._had[process] = self._had.get(process, 0) + nbytes // self._frame_bytes + pages

    def why_refused(self, sizes: bytes, page: int) -> str:
        """Returns why a page of a chain gets no room: for now, or for good because the page alone is too large."""
        (size,) = _SIZE.unpack_from(sizes, page * _SIZE.size)
        if not size:
            return "a page of 0 bytes cannot be stored"
        frames = -(-size // self._frame_bytes)
        if frames > self._frames:
            return self._never(size, f"the arena has {self._frames * self._frame_bytes}: set a larger arena.size")
        if 0 < self._most < frames:
            most = f"{self._most * self._frame_bytes} of the arena"
            return self._never(size, f"store.share allows {most} to a process: set a larger store.share or arena.size")
        return _RESERVED

    @staticmethod
    def _never(size: int, limit: str) -> str:
        return f"a page of {size} bytes never fits, and waiting does not help: {limit}"

    def renew(self) -> None:
        """Lets processes at their quota be counted again, because they may have written pages.

        Called a few times a second.
        """
        self._at_quota.clear()

    def _count_pages(self, slot: int, process: _Process, each: array[int]) -> int:
        if process in self._at_quota:
            return 0
        pages = self._count(each, self._room(slot, process))
        if pages < len(each):
            self._owner.settle()  # pages that were written in the meantime no longer count
            pages = self._count(each, self._room(slot, process))
        if not pages and self._had[process]:  # a process without reserved pages only asked for a page that never fits
            self._at_quota.add(process)
        return pages

    def _room(self, slot: int, process: _Process) -> int:
        self._had[process] = self._owner.frames_writing(slot) if self._owner.open_entries else 0
        return self._most - self._had[process]

    def _glance(self, each: array[int]) -> int:
        """Returns an upper bound of the frames: at most one frame of each page is only partly used."""
        return sum(each) // self._frame_bytes + len(each)

    def _count(self, each: array[int], room: int) -> int:
        for page, size in enumerate(each):
            room -= -(-size // self._frame_bytes)
            if room < 0:
                return page
        return len(each)


_READING: Final = "this user has reached its quota of pages that are read ahead: store.share"
MOST_PREFETCHES: Final = 64
_FetchFunction: TypeAlias = Callable[[Fetch, Callable[[Fetched], None], int], int]


class _OpenPrefetch(msgspec.Struct, eq=False):
    """A request that reads ahead, with the frames that it was granted."""

    frames: int = 0


class PrefetchQuota:
    """The quota of frames into which pages are read for a user without an attachment. On the loop's thread only.

    It is that of a process that stores, store.share. A small arena has no quota, but the number of requests is limited.
    """

    def __init__(self, header: IndexHeader, share: float) -> None:
        self._most = share_of(header, share) or header.frames
        self._reading: dict[int, list[_OpenPrefetch]] = {}

    def enter(self, user: int, request: Fetch, reply: Callable[[Fetched], None], fetch: _FetchFunction) -> None:
        """Passes a request on to `fetch` with the frames that are left to the user, or replies that none are left."""
        reading = self._reading.setdefault(user, [])
        room = self._most - sum(each.frames for each in reading)
        if room <= 0 or len(reading) >= MOST_PREFETCHES:
            outcomes = bytes([FetchOutcome.NO_ROOM]) * (len(request.keys) // KEY_BYTES)
            reply(Fetched(request.number, outcomes, _READING))
            return
        prefetch = _OpenPrefetch()
        reading.append(prefetch)

        def end(answer: Fetched) -> None:
            reading.remove(prefetch)
            if not reading:
                self._reading.pop(user, None)
            reply(answer)

        prefetch.frames = fetch(request, end, room)


MOST_OF_PROCESS: Final = SLOTS // 4


def has_slot(attachments: list[AttachmentRecord], process: Process, token: int) -> bool:
    """Returns whether a session of this process has a slot."""
    return token in [one.token for one in sessions_of(attachments, process)]


def why_no_slot(attachments: list[AttachmentRecord], process: Process, token: int, kept: int) -> str:
    """Returns why a session of this process gets no slot; "" if it may have one or has one already.

    Args:
        attachments: The attachments.
        process: The process of the session.
        token: The session.
        kept: The number of slots that no engine may have.
    """
    if has_slot(attachments, process, token):
        return ""
    if len(sessions_of(attachments, process)) >= MOST_OF_PROCESS:
        return f"this process has {MOST_OF_PROCESS} slots: close one of its sessions first"
    if len(attachments) + kept >= SLOTS:
        for_disk = " or reserved for the disk tier" if kept else ""
        return f"all {SLOTS} slots are taken{for_disk}: end an engine first"
    return ""


def sessions_of(attachments: list[AttachmentRecord], process: Process) -> list[AttachmentRecord]:
    """Returns the attachments of a process."""
    return [one for one in attachments if process.same(Process(one.pid, one.started, one.kernel_id))]


def why_refused(owner: Owner, quota: StoreQuota, tenants: Tenants, outcomes: bytes, sizes: bytes) -> str:
    """Returns why pages of the store that was just handled were refused, "" if none was.

    Args:
        owner: The index.
        quota: The quota of its process.
        tenants: The quotas of tenants.
        outcomes: The outcome of each page.
        sizes: The size of each page, u64.
    """
    if ReserveOutcome.REFUSED_SIZE in outcomes:
        page = outcomes.index(ReserveOutcome.REFUSED_SIZE)
        return tenants.why_refused("a larger page never fits") or quota.why_refused(sizes, page)
    if ReserveOutcome.REFUSED_FULL not in outcomes:
        return ""
    if owner.lacks_memory:
        return "there is no memory for more of the arena: /dev/shm is full"
    full = "pages that are pinned, being written or of the same prompt"
    return tenants.why_refused(f"it is full of {full}") or f"the arena is full of {full}"
