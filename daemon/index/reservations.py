"""Grants memory to stores in one call of the core: to the usual one without decoding it, to every other one checked."""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.common.namespaces import printable, wrong_space
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.disk_tier import DiskTier
from pagetier.daemon.fleet.fleet_tier import FleetTier
from pagetier.daemon.index.evictor import Evictor
from pagetier.daemon.index.hint_requests import Hints
from pagetier.daemon.index.idle_namespaces import IdleNamespaces
from pagetier.daemon.index.quotas import PinQuota, StoreQuota
from pagetier.daemon.index.reaper import Reaper
from pagetier.daemon.index.tenants import Tenants
from pagetier.shm._core import KEY_BYTES, NO_ENTRY, PARTS, Owner, ReserveOutcome
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import LENGTH, pack_reserve, pack_reserved, read_reserve, read_reserved
from pagetier.shm.page_rows import PAGE_ANSWERS, PAGE_REQUESTS, PageAnswer
from pagetier.shm.protocol import FetchLocated, Prompt, Reserve, Reserved, Space

_STOPPING: Final = "the daemon is stopping"
_U32: Final = 1 << 32
_PARENT_BYTES: Final = {0, KEY_BYTES}
_WHOLE: Final = (Prompt(0),)


class ReservationParts(msgspec.Struct, frozen=True, eq=False):
    """The parts of the service that a reservation needs: what may refuse it, and what follows from it."""

    reaper: Reaper
    tenants: Tenants
    evictor: Evictor
    hints: Hints
    disk: DiskTier
    fleet: FleetTier
    idle_namespaces: IdleNamespaces


class Reservations:
    """Grants memory to stores. On the loop's thread only.

    Attributes:
        seconds: How long reservations took.
    """

    def __init__(self, owner: Owner, config: Config, parts: ReservationParts, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._parts = parts
        self._store_quota = StoreQuota(owner, config.arena.process_share)
        self._pin_quota = PinQuota(owner, parts.reaper.names, config.arena.process_share)
        self._ttl_ns = int(config.store.reservation_timeout * 1e9)
        self.seconds = Histogram()

    def follow(self, config: Config) -> None:
        """Applies another configuration from now on."""
        self._store_quota.follow(config.arena.process_share)
        self._pin_quota.follow(config.arena.process_share)

    def poll(self) -> None:
        """Does the periodic work of the quotas. Called a few times a second."""
        self._store_quota.renew()
        self._pin_quota.check()

    def serve_message(
        self, slot: int, ends: int, received: memoryview, nbytes: int, send: Callable[[bytes], None]
    ) -> bool:
        """Serves the usual reservation without decoding it: each object and call on this path delays the store.

        What follows from it is done after the response is sent.

        Args:
            slot: The slot of the writer.
            ends: How often it had been freed when the writer got it.
            received: Begins with the message and its length.
            nbytes: The bytes that were received.
            send: Sends a response.

        Returns:
            False for another message, and for a reservation that has to wait or be decoded. Nothing has changed then.
        """
        began, disk = self._loop.time(), self._parts.disk
        # The slot may belong to another session by now, a daily budget needs the run of each page, and a store waits
        # while the disk is behind, or is rejected: ask() does all of that with a decoded request.
        if self._parts.reaper.ends(slot) != ends or disk.budget.per_day or disk.stopping or not disk.backpressure.idle:
            return False
        served = self._owner.serve_reserve(slot, self._ttl_ns, self._store_quota.frames_left(slot), nbytes, received)
        if served is None:
            return False
        response, frames, granted, granted_bytes, full, oversized = served
        point("service.reserved")
        if full or oversized >= 0:
            response = pack_reserved(_answer(response, self._why_refused(full, oversized)))
        # The engine copies from here on, so nothing that follows delays its store.
        send(response)
        self._store_quota.add(slot, frames)
        disk.write_behind.stores.add(granted, granted_bytes, began)
        if granted and self._parts.fleet.writes.enabled:
            request = read_reserve(bytes(received[LENGTH.size : nbytes]))
            self._parts.fleet.note_stored(request, read_reserved(response[LENGTH.size :]), granted_bytes)
        self._make_room()
        self.seconds.add(self._loop.time() - began)
        return True

    def ask(self, slot: int, request: Reserve, reply: Callable[[Reserved], None]) -> None:
        """Handles a reservation, at once or after a short wait for the disk; no reply if the slot is freed first."""
        began, backpressure = self._loop.time(), self._parts.disk.backpressure
        if backpressure.idle:
            self._serve(slot, request, reply, began)
            return
        serve = functools.partial(self._serve_late, slot, self._parts.reaper.ends(slot), request, reply, began)
        pages = PAGE_REQUESTS.first(request.pages, PAGE_REQUESTS.count(request.pages))
        tenant = self._parts.tenants.number(request.space.name)
        backpressure.serve_when_disk_has_room(self._owner.frames_for(pages), serve, tenant)

    def reserve(self, slot: int, request: Reserve) -> Reserved:
        """Reserves pages and returns the outcome of each. An invalid request is rejected as a whole."""
        wrong = _STOPPING if self._parts.disk.stopping else wrong_request(request)
        space = -1 if wrong else self._space_or_room(request.space)
        if wrong or space < 0:
            return _refused(request, wrong or self._parts.idle_namespaces.reject())
        return self._reserve(slot, space, self._parts.hints.checked(request))

    def space(self, space: Space) -> int:
        """Returns the number of a valid namespace in the index, which gets one if it has none; -1 without room."""
        return self._owner.space(space.digest, printable(space.name), space.page_tokens, space.window, space.group)

    def located_spaces(self, request: FetchLocated) -> tuple[int, ...]:
        """Returns the number of each namespace of pages that were located in the fleet; () if none can be read."""
        if any(map(wrong_space, request.table)):
            return ()
        numbers = tuple(self.space(space) for space in request.table)
        return numbers if min(numbers, default=-1) >= 0 else ()

    def _space_or_room(self, space: Space) -> int:
        """Returns the number of a valid namespace, in place of an idle one if the table is full; -1 without room."""
        number = self.space(space)
        return self.space(space) if number < 0 and self._parts.idle_namespaces.make_room() else number

    def _serve_late(
        self, slot: int, ends: int, request: Reserve, reply: Callable[[Reserved], None], began: float
    ) -> None:
        # A store may have waited for the disk while its slot was freed: frames for it would belong to the next owner.
        if self._parts.reaper.ends(slot) == ends:
            self._serve(slot, request, reply, began)

    def _serve(self, slot: int, request: Reserve, reply: Callable[[Reserved], None], began: float) -> None:
        reply(self.reserve(slot, request))
        self._make_room()  # the engine copies by now, so that this does not delay its store
        self.seconds.add(self._loop.time() - began)

    def _reserve(self, slot: int, space: int, request: Reserve) -> Reserved:
        """Reserves the pages of a valid request in a namespace."""
        # The quota of the process decides before the core does: pages beyond it must not evict those of others.
        allowed = self._store_quota.pages(slot, request.pages)
        beyond = PAGE_REQUESTS.count(request.pages) - allowed
        served = self._owner.reserve(slot, space, self._ttl_ns, beyond, pack_reserve(request))
        response, _, granted, granted_bytes, full, oversized = served
        # The frames belong to the slot from here on. If the daemon dies before the answer arrives, the session does not
        # list these serials when it attaches to the next daemon, which frees them (Service.attach).
        point("service.reserved")
        too_many = PAGE_REQUESTS.row(request.pages, allowed).size if beyond else -1
        answer = _answer(response, self._why_refused(full, oversized, too_many))
        self._parts.hints.keep_stored(slot, request, allowed)
        self._note_granted(request, answer, granted, granted_bytes)
        return answer

    def _note_granted(self, request: Reserve, answer: Reserved, granted: int, granted_bytes: int) -> None:
        """Counts the pages that were granted for the tiers that will have to write them."""
        disk = self._parts.disk
        disk.write_behind.stores.add(granted, granted_bytes, self._loop.time())
        if disk.budget.per_day:
            entries = array("I", [page.entry for page in PAGE_ANSWERS.read(answer.pages)])
            known = self._owner.reservations(entries), self._owner.tiers(entries)
            disk.budget.note(request.pages, answer.pages, *known)
        if granted:
            self._parts.fleet.note_stored(request, answer, granted_bytes)

    def _why_refused(self, full: int, oversized: int, beyond: int = -1) -> str:
        """Returns why pages of the store that was just handled were refused, "" if none was.

        Args:
            full: The pages for which there is no room.
            oversized: The size of the first page that never fits, -1 if there is none.
            beyond: The size of the first page that the process might not reserve, -1 if it might reserve all.
        """
        if full:
            self._pin_quota.full()
        if beyond >= 0:
            return self._store_quota.why_refused(beyond)
        why_by_quota = self._parts.tenants.why_refused
        if oversized >= 0:
            return why_by_quota("a larger page never fits") or self._store_quota.why_refused(oversized)
        if not full:
            return ""
        if self._owner.lacks_memory:
            return "there is no memory for more of the arena: /dev/shm is full"
        content = "pages that are pinned, being written or of the same prompt"
        return why_by_quota(f"it is full of {content}") or f"the arena is full of {content}"

    def _make_room(self) -> None:
        """Frees memory for later stores: evicts, and writes pages to disk, so that more can be evicted."""
        self._parts.evictor.maybe_evict()
        self._parts.disk.write_behind.write_due()
        point("service.checked")


def _answer(response: bytes, reason: str) -> Reserved:
    """Returns the response of the core, which has no reason, with the reason why pages were refused."""
    return msgspec.structs.replace(read_reserved(response[LENGTH.size :]), reason=reason)


def _refused(request: Reserve, reason: str) -> Reserved:
    refused = PageAnswer(ReserveOutcome.REFUSED_FULL, NO_ENTRY, 0)
    pages = PAGE_ANSWERS.pack([refused] * PAGE_REQUESTS.count(request.pages))
    return Reserved(request.number, pages, reason)


def wrong_request(request: Reserve) -> str:
    """Returns why a request is invalid, "" if it is valid."""
    if not PAGE_REQUESTS.is_whole(request.pages):
        return f"{len(request.pages)} bytes are not a whole number of pages"
    if not 1 <= request.parts <= PARTS or not 0 <= request.part < request.parts:
        return f"part {request.part} of {request.parts} is invalid: a page has at most {PARTS} parts"
    if not 0 <= request.division < _U32:
        return f"division {request.division} is invalid: it is a u32"
    return wrong_prompts(request) or wrong_space(request.space)


def wrong_prompts(request: Reserve) -> str:
    """Returns why the prompts of a request are invalid, "" if they are valid."""
    prompts, pages = request.prompts or _WHOLE, PAGE_REQUESTS.count(request.pages)
    if len(prompts) == 1 and not prompts[0].begin and not prompts[0].before:
        return ""
    begins = [prompt.begin for prompt in prompts]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"the begins of {len(begins)} prompts are not a division of {pages} pages"
    if not {len(prompt.before) for prompt in prompts} <= _PARENT_BYTES:
        return "the key of the page before a prompt has another length than a key"
    return ""
