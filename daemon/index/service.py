"""Handles the requests of attached processes against the index."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from pagetier.daemon.common.namespaces import printable
from pagetier.daemon.config.live_settings import LiveSettings
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.disk_tier import DiskTier
from pagetier.daemon.fleet.fleet_tier import FleetTier
from pagetier.daemon.host.arena_fit import short_index
from pagetier.daemon.host.peer_credentials import Peer
from pagetier.daemon.index.evictor import Evictor
from pagetier.daemon.index.flush_requests import FlushRequests
from pagetier.daemon.index.hint_requests import Hints
from pagetier.daemon.index.idle_namespaces import IdleNamespaces
from pagetier.daemon.index.lookup_reader import LookupReader
from pagetier.daemon.index.quotas import PrefetchQuota
from pagetier.daemon.index.reaper import Reaper
from pagetier.daemon.index.reservations import ReservationParts, Reservations
from pagetier.daemon.index.scan_queue import ScanQueue
from pagetier.daemon.index.shortage import Shortage
from pagetier.daemon.index.slots import has_slot, why_no_slot
from pagetier.daemon.index.tenants import Tenants
from pagetier.daemon.reads.lower_tier_reads import NO_LIMIT, LowerTierReads
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.geometry import Geometry
from pagetier.shm.log_format import event
from pagetier.shm.page_rows import LOCATED_PAGES, PAGE_KEYS, PAGE_SERIALS
from pagetier.shm.protocol import (
    DISK,
    POPULATING,
    UNDERSTOOD,
    Attach,
    Check,
    Fetch,
    Fetched,
    FetchLocated,
    Findings,
    Flush,
    Flushed,
    Forget,
    Locate,
    Located,
    Reclaim,
    Reclaimed,
    Refusal,
    Resize,
    Resized,
    Save,
    Saved,
    Welcome,
)
from pagetier.shm.segments import Segments
from pagetier.shm.slot_locks import new_lock

log = logging.getLogger(__name__)

_U64 = 1 << 64
_TIDY_EVERY_S, _TIDY_AGAIN_S = 0.05, 1.0  # the second one after a failure, which fills the log if it lasts
_TIDY_MOST = 16384  # of possibly a million open entries of a process, because other requests wait
_FIRST_SAVE, _NEXT_SAVE = (Save, True), (Save, False)  # keys of the scan queue, for a client's first and next requests


class Service:
    """The index's only writer. All calls are on the loop's thread, and none of them blocks.

    Clients may observe at once; engines may attach after open_to_engines().

    Attributes:
        hints: Gives hints to pages.
        alive: Called a few times a second by the loop that does all work.
        evictor: Evicts pages ahead of need, and knows the order of eviction.
        tenants: The quotas in force.
        reservations: Grants memory to stores.
        publisher: Takes the reports of all parts of the daemon.
    """

    def __init__(
        self, segments: Segments, config: Config, publisher: StatusPublisher, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.segments, self.publisher = segments, publisher
        self._owner: Owner = segments.owner
        self._config, self._loop = config, loop
        self._open = False
        self._reaper = Reaper(self._owner, loop, config.store.quarantine, segments.open_locks())
        self.tenants = Tenants(self._owner, config.quota)
        self.evictor = Evictor(self._owner, config.evict, loop)
        self.hints = Hints(self._owner, config.evict)
        self._lookups = LookupReader(self._owner)
        self._prefetch_quota = PrefetchQuota(self._owner.header(), config.arena.process_share)
        self._shortage = Shortage(self._owner)
        self._reads = LowerTierReads(self._owner, int(config.store.reservation_timeout * 1e9), loop)
        self.disk = DiskTier(segments, config, self._reads, publisher, loop)
        self.fleet = FleetTier(segments, config.remote, self._reads, publisher.note_fleet, loop, config.socket)
        self.idle_namespaces = IdleNamespaces(self._owner, config.index, self.disk)
        parts = ReservationParts(
            self._reaper, self.tenants, self.evictor, self.hints, self.disk, self.fleet, self.idle_namespaces
        )
        self.reservations = Reservations(self._owner, config, parts, loop)
        self.in_force = LiveSettings(config)
        self.in_force.notes = self.evictor.notes()
        self.in_force.follow(self._follow)
        self.alive: Callable[[], None] = lambda: None
        self._scans = ScanQueue(loop)
        self._flushing = FlushRequests(self._owner, self.disk, self._scans)
        self._reaper.watch_adopted()
        self._tidying = loop.call_soon(self._tidy)

    def open_to_engines(self) -> None:
        """Lets engines attach: the arena is ready."""
        self._open = True
        self.publisher.note_progress(PhaseProgress(Phase.SERVING))
        self.disk.start()
        self.fleet.start()

    @property
    def deaths(self) -> int:
        """The number of attached processes that ended without detaching, since this daemon started."""
        return self._reaper.deaths

    def ends(self, slot: int) -> int:
        """Returns how often this slot was freed: while the number stays, the slot belongs to the same session."""
        return self._reaper.ends(slot)

    def has_slot(self, peer: Peer, request: Attach) -> bool:
        """Returns whether the peer's session has a slot already."""
        return has_slot(self._owner.attachments(), peer.process, request.token % _U64)

    def attach(self, peer: Peer, request: Attach) -> Welcome | Refusal:
        """Attaches the peer's session in its previous slot or a new one, or returns why it is refused."""
        if not self._open:
            return Refusal(POPULATING)
        if not PAGE_SERIALS.is_whole(request.serials):
            return Refusal(f"{len(request.serials)} bytes are not a whole number of serials")
        process, token, name = peer.process, request.token % _U64, printable(request.name)
        # Before slots are counted: a process that has executed another program still has those of its earlier one.
        self._reaper.free_unmapped(process, token)
        if why := why_no_slot(self._owner.attachments(), process, token, self.disk.slots_kept + self.fleet.slots_kept):
            return Refusal(why)
        pidfd = os.dup(peer.pidfd)  # before the slot is taken: a slot without a pidfd would never be freed
        # A session that has lost its slot keeps its mapping, which has the lock of the earlier slot, or none.
        lock = 0 if request.mapped == self._owner.header().segments_id else new_lock()
        slot = self._owner.attach(process.pid, peer.uid, process.started, token, name, process.kernel_id, lock)
        point("service.attached")
        # The session lists the reservations whose answers it has. Frames that an earlier daemon granted without the
        # answer arriving are freed here, as no process will ever write them.
        self._owner.keep_only(slot, request.serials)
        point("service.kept")
        self._reaper.watch(slot, pidfd)
        self._reaper.names.attached(slot, process.pid)
        point("service.watched")
        return self._welcome(slot)

    def descriptors(self, slot: int, peer: Peer) -> list[int]:
        """Returns new descriptors for the process in a slot. The caller closes them. Raises ShmError, OSError."""
        descriptors = self.segments.slot_descriptors(slot)
        self._reaper.warn_if_unlocked(slot, peer.uid)
        return descriptors

    def observe(self) -> Welcome:
        """Returns what a client needs to read the index without attaching."""
        return self._welcome(-1)

    def detach(self, slot: int) -> None:
        """Frees a slot whose process no longer accesses any page."""
        self._reaper.release(slot)
        point("service.detached")

    def fetch(self, request: Fetch, reply: Callable[[Fetched], None], most_frames: int = NO_LIMIT) -> int:
        """Returns how many frames pages that are not in memory get; `reply` is called once, in time."""
        if not PAGE_KEYS.is_whole(request.keys):
            reply(Fetched(request.number, b"", f"{len(request.keys)} bytes are not a whole number of keys"))
            return 0
        granted = self._reads.ask(request, reply, most_frames)
        self._fetched()
        return granted

    def fetch_located(self, request: FetchLocated, reply: Callable[[Fetched], None]) -> None:
        """Reads pages from disk and the fleet; `reply` is called once, in time."""
        if not LOCATED_PAGES.is_whole(request.pages):
            reply(Fetched(request.number, b"", f"{len(request.pages)} bytes are not a whole number of pages"))
            return
        self._reads.ask_located(request, reply, self.reservations.located_spaces(request))
        self._fetched()

    def _fetched(self) -> None:
        point("service.fetched")
        self.evictor.maybe_evict()

    def locate(self, request: Locate, reply: Callable[[Located], None]) -> None:
        """Asks which pages the fleet has; `reply` is called once, within `remote.ask_timeout`."""
        self.fleet.locate(request, reply)

    def prefetch(self, user: int, request: Fetch, reply: Callable[[Fetched], None]) -> None:
        """Reads pages from disk for a user who is not attached, within the user's share; `reply` is called once."""
        self._prefetch_quota.enter(user, request, reply, self.fetch)

    def save(self, request: Save, reply: Callable[[Saved], None]) -> None:
        """Replies with the progress of writing all pages to disk, continued while a client polls. See ScanQueue."""
        self._scans.ask(
            _FIRST_SAVE if request.number == 0 else _NEXT_SAVE,
            lambda: self.disk.save(request.number),
            lambda saved: reply(msgspec.structs.replace(saved, number=request.number)),
        )

    def flush(self, request: Flush | Forget, reply: Callable[[Flushed], None]) -> None:
        """Drops pages; `reply` is called once. See FlushRequests."""
        self._flushing.serve(request, reply)

    def check(self, request: Check, reply: Callable[[Findings], None]) -> None:
        """Verifies the whole index. A million pages take about 200 ms without other replies. See ScanQueue."""
        self._scans.ask(Check, self._owner.check_integrity, lambda found: reply(Findings(request.number, found)))

    def manage(self, request: Resize | Reclaim) -> Resized | Reclaimed:
        """Does what only root and the daemon's own user may ask for."""
        return self._resize(request) if isinstance(request, Resize) else self._reclaim(request)

    def _resize(self, request: Resize) -> Resized:
        """Changes sizes while engines run, until the configuration is read again."""
        try:
            changes = self.in_force.resize(request.settings)
        except ConfigError as error:
            return Resized(request.number, trouble=str(error))
        log.info("resized: %s", changes, extra=event("resized"))
        warnings = [f"warning: {text}" for text in (self.disk.too_large(), self.short_index()) if text]
        return Resized(request.number, [*changes.done, *warnings])

    def _reclaim(self, request: Reclaim) -> Reclaimed:
        """Frees an adopted slot whose process no pidfd watches, on an administrator's word."""
        trouble = self._reaper.reclaim(request.slot)
        if not trouble:
            log.warning("slot %d is freed by request", request.slot, extra=event("reclaimed", slot=request.slot))
        return Reclaimed(request.number, trouble)

    def short_index(self) -> str:
        """Returns a warning if the index is too small for the sizes in force, else ""."""
        return short_index(Geometry.of(self._owner.header()), self.in_force.config)

    def _follow(self, config: Config) -> None:
        self.reservations.follow(config)
        self._prefetch_quota.follow(config.arena.process_share)
        self.tenants.follow(config.quota)
        self.evictor.follow(config.evict)
        self.in_force.notes = self.evictor.notes()
        self.hints.follow(config.evict)
        self.disk.follow(config.disk)
        self.fleet.follow(config.remote)

    def close(self) -> None:
        """Stops the service. The segments stay as they are."""
        self._tidying.cancel()
        self._scans.close()
        self.disk.abandon()
        self.fleet.abandon()
        self._reaper.close()

    def _welcome(self, slot: int) -> Welcome:
        extras = (*UNDERSTOOD, DISK) if self.disk.configured else UNDERSTOOD
        return Welcome(slot, self._owner.header().segments_id, self._config.arena.prefault == "populate", extras)

    def _tidy(self) -> None:
        self._tidying = self._loop.call_later(_TIDY_AGAIN_S, self._tidy)  # if a part of it fails now
        self._work()
        self._tidying.cancel()
        self._tidying = self._loop.call_later(_TIDY_EVERY_S, self._tidy)

    def _work(self) -> None:
        """Does the periodic work: settles finished, abandoned and expired reservations, and checks the quotas."""
        if self._owner.open_entries:
            self._owner.settle(_TIDY_MOST)
            point("service.settled")
            self.evictor.maybe_evict()
        if self._scans.waits(_FIRST_SAVE) or self._scans.waits(_NEXT_SAVE):
            self.disk.flush.go_on()
        with suppress(OSError):  # without memory for events engines announce nothing
            self._owner.serve_events()
        self.disk.tidy()
        self.fleet.tidy()
        self.publisher.note_eviction(self.evictor.poll())
        self.publisher.note_hints(self.hints.report)
        self.publisher.note_slots(tuple(self._reaper.unjudged), self._reaper.names.unseen)
        self.tenants.poll()
        self.publisher.note_tenants(self.tenants.report())
        self._lookups.poll()
        self.reservations.poll()
        self.idle_namespaces.poll()
        self._shortage.check()
        self.alive()
