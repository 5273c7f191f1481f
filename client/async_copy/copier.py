"""Copies between an engine's cache and the arena that nobody waits for."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from pagetier.client.async_copy.handles import LoadHandle, StoreHandle
from pagetier.client.async_copy.job import Counts
from pagetier.client.async_copy.load_job import LoadingJob, source_of
from pagetier.client.async_copy.store_job import ReservationQueue, StorePlan, StoringJob
from pagetier.client.async_copy.stream_queue import Drive, StreamQueue, in_thread
from pagetier.client.async_copy.throttle import BandwidthCap, CopyBacklog, Rate
from pagetier.client.client import Client
from pagetier.client.futures import PendingReservation
from pagetier.client.keys import Keys
from pagetier.client.match import Match
from pagetier.client.paged_blocks import Part, part_of, require_named
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.config.file import load_settings
from pagetier.kernels.device import Device, Direction, EngineEvent
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.kernels.pinning.pinning import Registering, Unregistering

_LAYERS_AHEAD: Final = 256  # of loads: a device may make whoever enqueues more than about a thousand wait
# A socket that takes anything takes the keys of so many pages whole. Of more it may take half, and half a request ends
# the attachment, so that they are given some time.
_SENT_AT_ONCE: Final = 1500
_SENDING_S: Final = 0.25
_DEFAULT: Final = CopySettings()


def _nothing(timeout: float) -> bool:
    return True


class Reserving(Protocol):
    """What is used of a Client."""

    def reserve_async(self, keys: Keys, sizes: int, part: Part, timeout: float) -> PendingReservation:
        """See Client.reserve_async."""


class AsyncCopier:
    """Stores and loads of one cache, each way on a stream and a thread of its own. From any thread.

    load(), store() and what they return never make the caller wait, but where a timeout is named. Without a daemon, in
    a forked child, after close() and after a failure of the device every load is a miss and every store is refused.
    """

    def __init__(
        self,
        client: Reserving,
        cache: PagedCache,
        device: Device,
        settings: CopySettings = _DEFAULT,
        drive: Drive = in_thread,
        ended: Callable[[float], bool] = _nothing,
    ) -> None:
        """Raises ValueError for a cache on another device, and DeviceError.

        Args:
            client: as long as it is attached there is room for stores; loads are of its matches.
            cache: of this rank; its memory stays for as long as anything is in flight.
            device: where the cache is.
            settings: how much may be copied at once, and how fast.
            drive: calls the lanes' step(); by default from threads.
            ended: called by each close() after which nothing is in flight any more, with the seconds that are left:
                whether what it began has ended. Never called if the device failed.
        """
        if cache.cache.device != device.name:
            raise ValueError(f"the cache is on {cache.cache.device}, but the device is {device.name}")
        self._client, self._cache, self._settings = client, cache, settings
        self._require_event = device.require_event
        self._part = part_of(cache.shard)
        self._pid = os.getpid()
        self._at_end = ended
        rate = Rate()
        self._door = ReservationQueue()
        self._backlog = CopyBacklog(settings.backlog, rate, settings.store_bandwidth)
        stores, loads = (device.stream(way) for way in (Direction.STORE, Direction.LOAD))
        self._stores = StreamQueue(stores, rate, BandwidthCap(settings.store_bandwidth), settings.depth)
        self._loads = StreamQueue(loads, Rate(), BandwidthCap(settings.load_bandwidth), _LAYERS_AHEAD)
        self._stored, self._loaded = Counts(), Counts()
        for lane, name in ((self._stores, "pagetier-stores"), (self._loads, "pagetier-loads")):
            weakref.finalize(self, lane.close).atexit = False
            drive(lane, name)

    def load(self, match: Match, slots: SlotMap, start_page: int = 0, after: object = None) -> LoadHandle:
        """Begins to copy pages of a match into blocks, and pins them for itself: the match may be let go of.

        Args:
            match: held; of the client's. Pages behind its pinned ones, on disk, are not loaded: see Client.prefetch.
            slots: an item for each page from `first` on. They are not read or written until the load has ended.
            start_page: the first page to copy, counted from the head of the match.
            after: an event of the engine's that comes before the first byte is written; None: at once. Loads go in
                order: those behind this one wait for it, too, even if this one is cancelled. Should it fail, where the
                device can tell, this load fails alone.

        Raises ValueError as PagedCache.loading does, for pages of a namespace that says another order, and for an
        `after` that is no event of the device's.
        """
        if after is not None:
            self._require_event(after)
        if match.keys is not None:
            require_named(match.keys.namespace, self._cache.page)
        transfer = self._cache.loading(slots)
        source = None if self._foreign or self._loads.broken else source_of(match, transfer, start_page)
        gate = None if after is None or source is None else EngineEvent(after, source.transfer)
        job = LoadingJob(source, self._cache.cache.layers, self._loaded, gate)
        if gate is not None:
            gate.lost = job.cancel
        if source is not None and not self._loads.submit(job):
            source.let_go()
            job = LoadingJob(None, job.layers, self._loaded)
        return LoadHandle(job, gate)

    def store(self, keys: Keys, slots: SlotMap, after: object = None) -> StoreHandle:
        """Begins to store this rank's part of a page for each key, but for those that are to be skipped.

        Pages become readable chunk by chunk, from the head on. Those that the copies can not keep up with are left out,
        from the tail on.

        Args:
            keys: the whole chain from the head of the prompt, so that its recency is right.
            slots: an item for each key. Their content stays until the store is ready, or cancelled.
            after: an event of the engine's that comes before the first byte is read; None: at once. Stores behind this
                one wait for it, too. Should it fail, where the device can tell, this store is cancelled, and no other.

        Raises ValueError for what are no whole pages, and as load() does.
        """
        if after is not None:
            self._require_event(after)
        require_named(keys.namespace, self._cache.page)
        slots.require_whole(len(keys))
        sending = 0.0 if len(keys) <= _SENT_AT_ONCE else min(_SENDING_S, self._settings.patience)
        ask = partial(self._client.reserve_async, keys, self._cache.page.nbytes, self._part, sending)
        order = StorePlan(self._cache.storing(slots), ask)
        gate = None if after is None else EngineEvent(after)
        job = StoringJob(order, self._door, self._backlog, self._settings, self._stored, gate)
        if gate is not None:
            gate.lost = job.cancel
        reason = "the copier was made in another process" if self._foreign else self._stores.broken
        if reason or not self._stores.submit(job):
            job.refuse(reason or self._stores.broken or "the copier is closed")
        return StoreHandle(job)

    def close(self, timeout: float) -> bool:
        """Begins nothing new, and waits at most `timeout` seconds for what goes on: whether all of it has ended.

        What has not goes on by itself to its end, the unpinning of an arena, too; the session stays mapped for it. May
        be called again, and then returns True some time, unless the device failed with copies in flight.
        """
        if self._foreign:
            return True
        ends = time.monotonic() + timeout
        lanes = self._stores, self._loads
        for lane in lanes:
            lane.close()
        ended = all(lane.wait_idle(ends - time.monotonic()) for lane in lanes)
        if ended and not any(lane.broken for lane in lanes):
            return self._at_end(max(0.0, ends - time.monotonic()))
        return ended

    @property
    def load_bandwidth(self) -> int:
        """Bytes a second that loads are held to; 0: as many as they can."""
        return self._settings.load_bandwidth

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return self._stored + self._loaded

    @property
    def left_out(self) -> int:
        """Granted pages that were not stored, as the copies could not keep up."""
        return self._stored.left_out

    @property
    def _foreign(self) -> bool:
        return self._pid != os.getpid()

    def __repr__(self) -> str:
        return f"<AsyncCopier of {self._cache!r}, {self.counts}>"


def open_copier(client: Client, cache: PagedCache, settings: CopySettings | None = None) -> AsyncCopier:
    """Asynchronous copies between this rank's cache and the arena. Close it before the client.

    Args:
        client: attached or not; it stays the caller's.
        cache: in host memory, or on a GPU: then the arena is pinned in the background, and copies go another, slower
            way until it is.
        settings: None: what the copies' configuration says, see kernels.settings.

    Raises SettingsError, and DeviceError where there is no such GPU.
    """
    told = load_settings() if settings is None else settings
    if cache.cache.device == "cpu":
        host = HostDevice(client.threads)
        return AsyncCopier(client, cache, host, told, ended=host.close)
    return _on_gpu(client, cache, told)


def copier_pinning(
    client: Client,
    cache: PagedCache,
    settings: CopySettings,
    registrar: tuple[Registering, Unregistering],
    device: Callable[[Callable[[Frames], bool]], Device],
) -> AsyncCopier:
    """A copier that pins the arena in the background, together with the others of this client and process.

    registrar: pins memory, and unpins it. device: made with the question whether all of some frames are pinned by now.
    """
    lease = client.arenas.lease(*registrar)
    its = lease.watched(device(lease.ready))
    if client.session is not None:
        lease.begin(client.session)
    return AsyncCopier(client, cache, its, settings, ended=lease.end)


def _on_gpu(client: Client, cache: PagedCache, settings: CopySettings) -> AsyncCopier:
    from pagetier.kernels.gpu.cuda import cuda_device
    from pagetier.kernels.pinning.cuda_registrar import cuda_registrar

    name = cache.cache.device
    return copier_pinning(
        client, cache, settings, cuda_registrar(name), lambda pinned: cuda_device(name, settings, pinned)
    )
