"""Asynchronous copies between an engine's cache and the arena: the copier, and how to open one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Final

from pagetier.client.arguments import seconds_of
from pagetier.client.async_copy.arena_pages import pinned_source
from pagetier.client.async_copy.job import CopyJob, Counts
from pagetier.client.async_copy.load_job import LoadHandle, LoadingJob
from pagetier.client.async_copy.store_job import StoreHandle, StoringJob
from pagetier.client.async_copy.store_resources import StoreResources
from pagetier.client.async_copy.stream_queue import Drive, StreamQueue, in_thread
from pagetier.client.async_copy.throttle import BandwidthCap, CopyBacklog, Rate
from pagetier.client.attachment import AttachedClient
from pagetier.client.keys import Keys
from pagetier.client.match import Match, MatchHandle
from pagetier.client.paged_blocks import part_of, require_named
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.config.settings_file import load_settings
from pagetier.kernels.device import Device, Direction, EngineEvent
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.kernels.pinning.pinning import Registering, Unregistering
from pagetier.shm._core import Session
from pagetier.shm.clock import Deadline

# For loads: a device may block a thread that enqueues more than about a thousand copies.
_LAYERS_IN_ADVANCE: Final = 256
_DEFAULT: Final = CopySettings()


def _nothing(timeout: float) -> bool:
    return True


def _canceller(job: CopyJob) -> Callable[[], None]:
    """Returns a function that cancels the job, which keeps its gate: an interrupted call frees both at once."""
    weak = weakref.ref(job)

    def cancel() -> None:
        if (kept := weak()) is not None:
            kept.cancel()

    return cancel


class AsyncCopier:
    """Stores and loads of one cache, each direction with a stream and a thread of its own. Thread-safe.

    load(), store() and the handles that they return never make the caller wait, except in methods with a `timeout`.
    Without a daemon, in a forked child, after close() and after a failure of the device, every load is a miss and every
    store is rejected.
    """

    def __init__(
        self,
        client: AttachedClient,
        cache: PagedCache,
        device: Device,
        settings: CopySettings = _DEFAULT,
        drive: Drive = in_thread,
        ended: Callable[[float], bool] = _nothing,
    ) -> None:
        """Starts the threads that copy. Raises DeviceError if the device has failed.

        Args:
            client: Reserves memory for stores while it is attached. Loads are of its matches, and pinned in its memory.
            cache: The cache of this rank. Its memory must exist as long as copies are in flight.
            device: The device of the cache.
            settings: The limits on how much is copied at once, and how fast.
            drive: Calls the step() of both stream queues; by default from a thread for each.
            ended: Called by each close() after which no copies are in flight, with the seconds that are left. Returns
                whether everything that it began has ended. It is never called if the device failed.

        Raises:
            ValueError: The cache is on another device.
        """
        if cache.cache.device != device.name:
            raise ValueError(f"the cache is on {cache.cache.device}, but the device is {device.name}")
        self._client, self._cache, self._settings = client, cache, settings
        self._require_event, self._engine_event = device.require_event, device.engine_event
        self._pid = os.getpid()
        self._at_end = ended
        rate = Rate()
        backlog = CopyBacklog(settings.queue_limit, rate, settings.store_bandwidth)
        part = part_of(cache.shard)
        self._store_resources = StoreResources(client, cache.page.nbytes, part, backlog, settings)
        stores, loads = (device.stream(direction) for direction in (Direction.STORE, Direction.LOAD))
        self._stores = StreamQueue(stores, rate, BandwidthCap(settings.store_bandwidth), settings.depth)
        self._loads = StreamQueue(loads, Rate(), BandwidthCap(settings.load_bandwidth), _LAYERS_IN_ADVANCE)
        self._loaded = Counts()
        for queue, name in ((self._stores, "pagetier-stores"), (self._loads, "pagetier-loads")):
            weakref.finalize(self, queue.close).atexit = False
            drive(queue, name)

    def load(self, match: Match | MatchHandle, slots: SlotMap, start_page: int = 0, after: object = None) -> LoadHandle:
        """Starts to copy pages of a match into blocks, and pins them for itself: the match may be released at once.

        Raises ValueError as PagedCache.loading() does, and if the pages have another layout than the cache or `after`
        is not an event of the device.

        Args:
            match: A match that is not released, of the same client, or a handle from another process of the same
                engine, which keeps its match until this call has returned. Pages that are on disk are not loaded: see
                Client.prefetch().
            slots: The blocks of each page from `start_page` on. The engine must not read or write them until the load
                has ended.
            start_page: The first page to copy, counted from the first page of the match.
            after: An event of the engine that completes before the first byte is written; None to start at once. Loads
                run in order, so later loads wait for the event too, even if this load is cancelled. If the event fails
                and the device reports it, only this load fails.

        Returns:
            The load. Its `pages` says how many pages are copied; the pages after them are misses.
        """
        if after is not None:
            self._require_event(after)
        if isinstance(match, Match) and match.keys is not None:
            require_named(match.keys.namespace, self._cache.page)
        transfer = self._cache.loading(slots)
        source = pinned_source(self._session_of(match), match, transfer, start_page)
        gate = None if after is None or source is None else EngineEvent(after, source.transfer)
        job = LoadingJob(source, self._cache.cache.layers, self._loaded, gate)
        if gate is not None:
            gate.lost = _canceller(job)
        try:
            if source is not None and not self._loads.submit(job):
                source.release()
                job = LoadingJob(None, job.layers, self._loaded)
            return LoadHandle(job, gate)
        except BaseException:  # an exception of a signal handler: the caller may use its blocks now
            job.cancel()
            raise

    def store(self, keys: Keys, slots: SlotMap, after: object = None, delay: float = 0.0) -> StoreHandle:
        """Starts to store this rank's part of a page for each key, except for skipped pages.

        Pages become readable chunk by chunk, from the first page on. If the copies cannot keep up with the stores, the
        last pages are dropped. Raises ValueError if the keys have another layout than the cache, a page that is not
        skipped lacks tokens, or `after` is not an event of the device.

        Args:
            keys: All keys from the first page of the prompt on, which keeps the recency of the pages in order.
            slots: The blocks of each key. Their content must not change until the store is ready or cancelled.
            after: An event of the engine that completes before the first byte is read; None to start at once. Stores
                that begin later wait for it too. If the event fails and the device reports it, only this store is
                cancelled.
            delay: Seconds until the store begins, unless its handle's begin() is called or it is waited for before: the
                work of the copier's thread then does not compete with what the engine does next.

        Returns:
            The store.
        """
        if after is not None:
            self._require_event(after)
        require_named(keys.namespace, self._cache.page)
        slots.require_whole(len(keys))
        gate = None if after is None else EngineEvent(after)
        job = StoringJob(self._store_resources, keys, self._cache.storing(slots), gate, delay)
        if gate is not None:
            gate.lost = _canceller(job)
        reason = "the copier was created in another process" if self._foreign else self._stores.broken
        try:
            if reason or not self._stores.submit(job):
                job.reject(reason or self._stores.broken or "the copier is closed")
            return StoreHandle(job)
        except BaseException:  # as in load()
            job.cancel()
            raise

    def engine_event(self) -> object | None:
        """Returns an event for `after`: it follows all work that this thread has given to the engine's current stream.

        Returns None for an engine that works synchronously, and in a forked child. Raises DeviceError if the device has
        failed.
        """
        return None if self._foreign else self._engine_event()

    def close(self, timeout: float) -> bool:
        """Returns whether all copies have ended, after waiting at most `timeout` seconds. Rejects new copies.

        Copies that have not ended, and the unpinning of an arena, finish in the background; the session stays mapped
        for them. The method may be called again until it returns True. If the device failed with copies in flight, it
        never does.
        """
        deadline = Deadline(seconds_of("timeout", timeout))
        if self._foreign:
            return True
        queues = self._stores, self._loads
        for queue in queues:
            queue.close()
        ended = all(queue.wait_idle(deadline.left) for queue in queues)
        if ended and not any(queue.broken for queue in queues):
            return self._at_end(deadline.left)
        return ended

    @property
    def settings(self) -> CopySettings:
        """The limits of the copies."""
        return self._settings

    @property
    def load_bandwidth(self) -> int:
        """The limit on the bandwidth of loads in bytes per second; 0 for no limit."""
        return self._settings.load_bandwidth

    @property
    def counts(self) -> Counts:
        """The counts of all copies so far."""
        return self._store_resources.counts + self._loaded

    @property
    def dropped(self) -> int:
        """The number of granted pages that were not stored because the copies could not keep up."""
        return self._store_resources.counts.dropped

    def _session_of(self, match: Match | MatchHandle) -> Session | None:
        """Returns the session in which the pages of a match can be pinned; None if there is none."""
        if self._foreign or self._loads.broken:
            return None
        if isinstance(match, Match):
            return match.session if match.pinned else None
        session = self._client.session
        return session if session is not None and session.segments_id == match.segments_id else None

    @property
    def _foreign(self) -> bool:
        return self._pid != os.getpid()

    def __repr__(self) -> str:
        return f"<AsyncCopier of {self._cache!r}, {self.counts}>"


def open_copier(client: AttachedClient, cache: PagedCache, settings: CopySettings | None = None) -> AsyncCopier:
    """Returns a copier between this rank's cache and the arena. Close it before the client.

    Raises SettingsError if the settings file is invalid, and DeviceError if there is no such GPU.

    Args:
        client: The client, attached or not. The caller still has to close it.
        cache: A cache in host memory or on a GPU. For a GPU, the arena is pinned in the background, and a slower copy
            path is used until that is done.
        settings: The limits of the copies; None for those of the settings file, see kernels/config/settings_file.py.
    """
    chosen = load_settings() if settings is None else settings
    if cache.cache.device == "cpu":
        host = HostDevice(client.threads)
        return AsyncCopier(client, cache, host, chosen, ended=host.close)
    return _on_gpu(client, cache, chosen)


def copier_pinning(
    client: AttachedClient,
    cache: PagedCache,
    settings: CopySettings,
    registrar: tuple[Registering, Unregistering],
    device: Callable[[Callable[[Frames], bool]], Device],
) -> AsyncCopier:
    """Returns a copier that pins the arena in the background, shared with the other copiers of this client and process.

    Args:
        client: The client.
        cache: The cache on the device.
        settings: The limits of the copies.
        registrar: Pins memory, and unpins it.
        device: Makes the device from a function that returns whether all of some frames are pinned by now.
    """
    claim = client.attachment.arenas.claim(*registrar)
    pinning = claim.watched(device(claim.ready))
    if client.session is not None:
        claim.begin(client.session)
    return AsyncCopier(client, cache, pinning, settings, ended=claim.end)


def _on_gpu(client: AttachedClient, cache: PagedCache, settings: CopySettings) -> AsyncCopier:
    from pagetier.kernels.gpu.cuda import cuda_device
    from pagetier.kernels.pinning.cuda_registrar import cuda_registrar

    name = cache.cache.device
    return copier_pinning(
        client, cache, settings, cuda_registrar(name), lambda pinned: cuda_device(name, settings, pinned)
    )
