"""The worker's half: carries out the orders of each step, and says which requests have what they asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from pagetier.client.async_copy.copier import AsyncCopier
from pagetier.client.async_copy.handles import LoadHandle, StoreHandle
from pagetier.client.client import Client
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.kv_tensors import slots_of
from pagetier.client.engines.vllm.messages import GroupLoad, LoadOrder, Orders, StoreOrder
from pagetier.client.keys import Keys, Namespace
from pagetier.client.paged_blocks import Blocks
from pagetier.client.reservation import Outcome
from pagetier.kernels.layout.transfer import PagedCache

_PATIENCE_S: Final = 0.05  # for stores whose blocks are wanted for something else
_IDLE_S: Final = 0.02  # for all loads of a step that has nothing else to do, so that they are computed together
_AT_ONCE: Final = (
    32 << 20
)  # bytes of loads in a step that a CPU copies sooner than it wakes another thread to copy them
_CLOSING_S: Final = 5.0
_THERE: Final = (Outcome.STORED, Outcome.PRESENT)


class Zeroing(Enum):
    """Whether blocks are zeroed in a step before make_room() was called for it: then no store may outlive its step."""

    BEHIND_US = 1
    AHEAD_OF_US = 2


class RankGroup(msgspec.Struct, frozen=True):
    """One group on this rank."""

    cache: PagedCache
    namespace: Namespace
    copier: AsyncCopier


class _Storing(msgspec.Struct, eq=False):
    store: StoreHandle
    blocks: frozenset[int]
    order: StoreOrder
    given_up: bool = False


class _Loading(msgspec.Struct, frozen=True, eq=False):
    loads: tuple[LoadHandle, ...]
    blocks: frozenset[int]
    short: bool

    @property
    def ended(self) -> bool:
        return all(load.ended for load in self.loads)

    @property
    def whole(self) -> bool:
        return not self.short and all(_is_whole(load) for load in self.loads)


class Finished(msgspec.Struct, frozen=True):
    """Since the last time: requests whose last blocks are stored, whose loads have ended, and which of these failed.

    blocks: those of the failed loads.
    """

    stored: frozenset[str]
    loaded: frozenset[str]
    failed: frozenset[str]
    blocks: frozenset[int]


class WorkerHalf:
    """Called by one thread of vLLM's worker: in each step make_room first, then load and store, then finished.

    Args:
        client: this process's.
        lanes: of the groups, in vLLM's order.
        event: records and returns an event behind all that the engine's stream was given; None on the CPU.
        zeroing: when the engine zeroes blocks that it gives out.
    """

    def __init__(
        self,
        client: Client,
        lanes: Sequence[RankGroup],
        event: Callable[[], object],
        zeroing: Zeroing = Zeroing.BEHIND_US,
    ) -> None:
        self._client, self._event, self._zeroing = client, event, zeroing
        self.lanes = tuple(lanes)
        self._namespaces = [lane.namespace for lane in lanes]
        self.tally = ConnectorCounters()
        self._storing: list[_Storing] = []
        self._told: dict[int, bytes] = {}
        self._loading: dict[str, _Loading] = {}

    @property
    def on_host(self) -> bool:
        """Whether the engine computes on the CPU."""
        return all(lane.cache.cache.device == "cpu" for lane in self.lanes)

    def make_room(self, orders: Orders) -> None:
        """Before anything of the step is computed: what is still to be read from blocks that are written now, is read.

        Stores that are too slow for that are given up.
        """
        self._settle(storing for storing in self._storing if storing.blocks & orders.written)

    def load(self, loads: Iterable[LoadOrder]) -> None:
        """Begins to load; on the CPU what is little is loaded by this call.

        The blocks are the request's own until finished() has named it.
        """
        room = self._at_once
        for order in loads:
            room -= self._bytes_of(order)
            self._loading[order.request] = self._begun(order) if room < 0 else self._loaded(order)

    def store(self, stores: Iterable[StoreOrder]) -> None:
        """After all of the step was given to the engine's stream."""
        event = self._event()
        for order in stores:
            lane = self.lanes[order.group]
            slots = slots_of(lane.cache, order.blocks)
            store = lane.copier.store(Keys(self._namespace_of(order), order.keys), slots, after=event)
            self._storing.append(_Storing(store, frozenset(order.blocks) - {0}, order))
        if self._zeroing is Zeroing.AHEAD_OF_US:
            self._settle(self._storing)

    def finished(self, idle: bool) -> Finished:  # noqa: FBT001
        """What has ended since the last call. idle: the step computes nothing, so that loads are given a moment."""
        if idle:
            self._wait_a_moment()
        loaded = {request for request, loading in self._loading.items() if loading.ended}
        ended = {request: self._loading.pop(request) for request in loaded}
        failed = {request: loading for request, loading in ended.items() if not loading.whole}
        self.tally.add("failed_loads", len(failed))
        return Finished(
            self._stored(),
            frozenset(loaded),
            frozenset(failed),
            frozenset(block for loading in failed.values() for block in loading.blocks),
        )

    def _namespace_of(self, order: StoreOrder) -> Namespace:
        """Returns the namespace of an order's pages: a reset of the cache gives another salt to all that follow."""
        namespace = self._namespaces[order.group]
        if namespace.salt != order.salt:
            namespace = self._namespaces[order.group] = msgspec.structs.replace(namespace, salt=order.salt)
        return namespace

    def told(self) -> dict[int, bytes]:
        """Of numbered orders that have ended since the last call: for each page whether it is there, a byte each."""
        told, self._told = self._told, {}
        return told

    def close(self) -> None:
        """Waits some seconds at most for what is on its way."""
        for lane in self.lanes:
            lane.copier.close(_CLOSING_S)
        self._client.close()

    def _settle(self, stores: Iterable[_Storing]) -> None:
        """All of them together are given some time."""
        ends = time.monotonic() + _PATIENCE_S
        for storing in stores:
            if not storing.given_up and not storing.store.wait_ended(max(0.0, ends - time.monotonic())):
                storing.store.cancel()
                storing.given_up = True

    @property
    def _at_once(self) -> int:
        """Bytes; none where the engine's own thread has better things to do, or somebody said how fast to load."""
        capped = any(lane.copier.load_bandwidth for lane in self.lanes)
        return _AT_ONCE if self.on_host and not capped else 0

    def _bytes_of(self, order: LoadOrder) -> int:
        return sum(len(group.blocks) * self.lanes[group.group].cache.page.nbytes for group in order.groups)

    def _begun(self, order: LoadOrder) -> _Loading:
        loads = tuple(self._begin(group) for group in order.groups)
        short = any(load.pages < len(group.blocks) for load, group in zip(loads, order.groups, strict=True))
        return _Loading(loads, _blocks_of(order), short)

    def _begin(self, group: GroupLoad) -> LoadHandle:
        lane = self.lanes[group.group]
        with self._client.adopt(group.pages) as match:
            slots = slots_of(lane.cache, group.blocks)
            return lane.copier.load(match, slots, after=self._event())

    def _loaded(self, order: LoadOrder) -> _Loading:
        short = any(self._load(group) < len(group.blocks) for group in order.groups)
        return _Loading((), _blocks_of(order), short)

    def _load(self, group: GroupLoad) -> int:
        cache = self.lanes[group.group].cache
        with self._client.adopt(group.pages) as match:
            return self._client.load(match, Blocks(cache, slots_of(cache, group.blocks)))

    def _stored(self) -> frozenset[str]:
        """Requests that hold blocks for stores, and need not any more."""
        before, self._storing = self._storing, []
        ended = set()
        for storing in before:
            if not storing.store.ended:
                self._storing.append(storing)
                continue
            self._note(storing)
            ended.add(storing.order.request if storing.order.held else "")
        return frozenset(ended - {""} - {storing.order.request for storing in self._storing if storing.order.held})

    def _note(self, storing: _Storing) -> None:
        result = storing.store.wait(0.0)
        self.tally.add("stored_pages", result.stored)
        if storing.order.number:
            self._told[storing.order.number] = bytes(code in _THERE for code in result.codes)

    def _wait_a_moment(self) -> None:
        ends = time.monotonic() + _IDLE_S
        for loading in self._loading.values():
            for load in loading.loads:
                load.wait_ended(max(0.0, ends - time.monotonic()))


def _blocks_of(order: LoadOrder) -> frozenset[int]:
    return frozenset(block for group in order.groups for block in group.blocks)


def _is_whole(load: LoadHandle) -> bool:
    return not load.failed and load.ready(load.layers - 1)
