"""Looks up, loads and offloads pages for SGLang's scheduler: the linker without SGLang's classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from pagetier.client.async_copy.store_job import StoreHandle
from pagetier.client.client import Client
from pagetier.client.engines.events.idle_publisher import IdlePublisher
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.client.engines.sglang.linker.events import SglangEvents
from pagetier.client.engines.sglang.linker.loads import GroupPages, LayerCounter, LoadingBatch, QueuedLoad
from pagetier.client.engines.sglang.linker.lookups import Lookups
from pagetier.client.engines.sglang.linker.offloads import Offload, Offloads
from pagetier.client.engines.sglang.linker.released_hints import ReleasedHints
from pagetier.client.engines.sglang.pools.device_pools import FULL
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup, by_pool, hashes_of

log = logging.getLogger("pagetier.sglang")

_CLOSING_S: Final = 5.0


class Agreeing(Protocol):
    """The ranks of an engine."""

    def agree(self, *, here: bool) -> bool:
        """Returns whether the answer of every rank is True. All ranks call it."""


class ServedGroups(msgspec.Struct, frozen=True, eq=False):
    """What exists once the namespaces are known.

    Attributes:
        groups: The groups, the one with full attention first.
        lookups: Their lookups.
        mode: The setting `mode`.
        is_replica: Whether another rank has the same state and stores it.
    """

    groups: tuple[EngineGroup, ...]
    lookups: Lookups
    mode: str = "both"
    is_replica: bool = False


class Streams(msgspec.Struct, frozen=True, eq=False):
    """The engine's streams.

    Attributes:
        event: Records and returns an event after the work of the model so far; returns None on a CPU. Work of the
            calling thread's stream has ended before, when SGLang's indices have been copied to the host. The model's
            stream may still write pages that are stored, or slots that were freed and now receive loaded pages.
        current: See LoadingBatch.
    """

    event: Callable[[], object]
    current: Callable[[], object] | None


class RankServices(msgspec.Struct, frozen=True, eq=False):
    """What a rank does beside its transfers. The first rank announces pages and passes on hints for all.

    Attributes:
        prefetch: The thread that requests pages on disk and sends hints.
        events: Announces pages to routers; None if this rank publishes nothing.
        hints: Passes on what is known of sessions; None if another rank does so.
        idle: Publishes these events while SGLang does not; None if there are none.
        batches: Measures how long SGLang computes; None if that is not of use on this rank.
    """

    prefetch: PrefetchThread
    events: SglangEvents | None = None
    hints: ReleasedHints | None = None
    idle: IdlePublisher | None = None
    batches: BatchTimes | None = None


class Transfers:
    """All transfers of one rank. The scheduler's thread calls all methods; none raises an exception.

    Args:
        client: The client of this rank, which close() closes.
        opened: Returns the groups and lookups; None while the weights are not identified, and then nothing is cached.
            Its argument is how often SGLang has emptied its own cache.
        services: What this rank does beside its transfers.
        counter: The counter of SGLang's pools.
        ranks: The ranks of the engine.
        streams: The engine's streams.
    """

    def __init__(
        self,
        client: Client,
        opened: Callable[[int], ServedGroups | None],
        services: RankServices,
        counter: LayerCounter,
        ranks: Agreeing,
        streams: Streams,
    ) -> None:
        self._client, self._open, self._prefetch = client, opened, services.prefetch
        self._batches, self._flushes = services.batches, 0
        self._counter, self._ranks, self._streams = counter, ranks, streams
        self._events, self._idle, self._hints = services.events, services.idle, services.hints
        self._opened: ServedGroups | None = None
        self._failed = False
        self._queued: dict[str, QueuedLoad] = {}
        self._offloads = Offloads()

    def lookup(self, request: str, transfers: Sequence[Any]) -> list[int]:
        """Returns the lengths in pages that load() can restore, see Lookups.lookup()."""
        try:
            opened = self._ready()
            loads = opened is not None and opened.mode != "save_only"
            return opened.lookups.lookup(request, transfers) if opened and loads else []
        except Exception:
            log.exception("pagetier: a lookup failed, its request is computed")
            return []

    def load(self, request: str, transfers: Sequence[Any]) -> bool:
        """Queues a load, and returns whether all ranks can load all of its pages."""
        queued = self._prepared(request, transfers)
        # Every rank asks, also one that cannot load: the others wait for its answer.
        if self._ranks.agree(here=queued is not None) and queued is not None:
            self._queued[request] = queued
            return True
        if queued is not None:
            queued.hit.release()
        return False

    def cancel(self, request: str) -> bool:
        """Removes a load from the queue, and returns whether it was there."""
        queued = self._queued.pop(request, None)
        if queued is not None:
            queued.hit.release()
        return queued is not None

    def start(self) -> int:
        """Begins the queued loads, and returns the index of their batch; -1 if there are none."""
        queued, self._queued = list(self._queued.values()), {}
        if not queued:
            return -1
        batch = LoadingBatch(self._streams.current)
        opened = self._ready()
        batch.begin(opened.groups if opened else (), queued, self._streams.event())
        return self._counter.begin(batch)

    def offload(self, transfers: Sequence[Any]) -> None:
        """Begins to store pages. Each call adds one result to completed()."""
        try:
            self._offloads.append(self._begin(transfers))
        except Exception:
            self._offloads.append(Offload(None))
            log.exception("pagetier: pages cannot be stored")

    def completed(self) -> int:
        """Returns the number of results that pop() can return. SGLang asks in every step, so leases end here too."""
        opened = self._ready()
        if opened is not None:
            opened.lookups.expire()
        return self._offloads.completed()

    def with_events(self, events: Sequence[Any]) -> Sequence[Any]:
        """Returns SGLang's events and those of pagetier. SGLang asks after a prefill, in some steps, and when idle."""
        if self._events is None:
            return events
        try:
            if self._idle is not None:
                self._idle.start(self._events)
            opened = self._ready()
            return self._events.added_to(events, opened.groups[0].cache.namespace.digest if opened else b"")
        except Exception:
            log.exception("pagetier: pages cannot be announced")
            return events

    def released(self, request: Any, hashes: Callable[[], bytes]) -> None:
        """Passes on what is known of the session of a request that SGLang has released.

        Args:
            request: SGLang's Req.
            hashes: Returns SGLang's hashes of all full pages of the request, 32 bytes each.
        """
        try:
            hints, opened = self._hints, self._ready()
            said = hints.hints_of(request) if hints is not None else ()
            if hints is not None and opened is not None and (said or request.session_id is not None):
                keys = tuple(group.keys(hashes()) for group in opened.groups)
                hints.released(keys, said, request.session_id, self._offloads.begun)
                hints.stored(self._offloads.ended)
        except Exception:
            log.exception("pagetier: hints cannot be passed on")

    def session_closed(self, session: str) -> None:
        """Says that a session is over."""
        if self._hints is not None:
            self._hints.closed(session)

    def batch_ended(self, batch: Any) -> None:
        """Learns how long a batch of SGLang took; see ReportsBatches."""
        try:
            if self._batches is not None:
                self._batches.ended(batch)
        except Exception:
            log.exception("pagetier: a batch cannot be measured")

    def pop(self) -> bool:
        """Returns whether the pages of the oldest offload are stored."""
        stored = self._offloads.pop()
        if self._hints is not None:
            self._hints.stored(self._offloads.ended)
        return stored

    def reset(self) -> None:
        """Ends all transfers, so that SGLang can use its memory for other content. Stored pages stay."""
        # What writes into SGLang's memory ends first, then what reads it. Only then do leases and groups go.
        for request in list(self._queued):
            self.cancel(request)
        self._counter.reset()
        if not self._offloads.reset():
            log.error("pagetier: stores still read pages that SGLang frees")
        opened, self._opened, self._failed = self._opened, None, False
        self._flushes += 1
        if opened is not None:
            opened.lookups.release()
            for group in opened.groups:
                group.cache.close(_CLOSING_S)

    def close(self) -> None:
        """Ends all transfers and closes the client."""
        if self._idle is not None:
            self._idle.stop()
        self.reset()
        self._prefetch.close()
        self._client.close()

    def _ready(self) -> ServedGroups | None:
        """Returns the groups; None while the weights are not identified, and after a failure until reset()."""
        if self._opened is None and not self._failed:
            try:
                self._opened = self._open(self._flushes)
            except Exception:
                self._failed = True
                log.exception("pagetier cannot open the caches: nothing is cached until SGLang's cache is flushed")
        return self._opened

    def _prepared(self, request: str, transfers: Sequence[Any]) -> QueuedLoad | None:
        """Returns the load of a request, or None if not all of its pages are there."""
        try:
            opened = self._ready()
            prepared = _prepared(opened, request, transfers) if opened else None
            if opened is not None and prepared is not None:
                self._pass_on(opened, by_pool(transfers))
            return prepared
        except Exception:
            log.exception("pagetier: a load cannot be prepared, its request is computed")
            return None

    def _begin(self, transfers: Sequence[Any]) -> Offload:
        opened = self._ready()
        if opened is None or opened.mode == "load_only":
            return Offload(None)
        if opened.is_replica:
            return Offload(())
        pools, after = by_pool(transfers), self._streams.event()
        self._pass_on(opened, pools)
        return Offload([_store(group, pools[group.name], after) for group in opened.groups if group.name in pools])

    def _pass_on(self, opened: ServedGroups, pools: Mapping[str, Any]) -> None:
        """Lets the pages of full attention be announced."""
        if self._events is not None and FULL in pools:
            self._events.passed(opened.groups[0].cache.namespace.digest, hashes_of(pools[FULL].keys))


def _prepared(opened: ServedGroups, request: str, transfers: Sequence[Any]) -> QueuedLoad | None:
    pools = by_pool(transfers)
    blocks = [group.blocks(pools[group.name].device_indices).tolist() for group in opened.groups]
    hit = opened.lookups.take(request, transfers)
    return None if hit is None else QueuedLoad(hit, tuple(map(GroupPages, hit.matches, blocks)))


def _store(group: EngineGroup, transfer: Any, after: object) -> StoreHandle:
    blocks = group.blocks(transfer.device_indices)
    slots = group.cache.slots_of(blocks, len(blocks))
    return group.cache.copier().store(group.keys(hashes_of(transfer.keys)), slots, after=after)
