"""Executes the commands of each step, and reports which loads and stores have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import msgspec

from pagetier.client.async_copy import AsyncCopier, LoadHandle, StoreHandle, open_copier
from pagetier.client.client import Client
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.kv_tensors import slots_to_load, slots_to_store
from pagetier.client.engines.vllm.loading import Loading
from pagetier.client.engines.vllm.messages import (
    NOTHING_FINISHED,
    Finished,
    GroupLoad,
    LoadCommand,
    StepCommands,
    StoreCommand,
    batches_of,
    prompts_of,
)
from pagetier.client.keys import Keys, Namespace
from pagetier.client.paged_blocks import Blocks
from pagetier.client.session_lookups import adopt
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm import clock
from pagetier.shm.clock import Deadline

_CANCEL_AFTER_S: Final = 0.05  # for stores whose blocks are needed for other content
_STEP_S: Final = 10.0  # for a step whose stores may not outlive it
_NAP_S: Final = 0.0002  # between two looks whether it has ended
_IDLE_S: Final = 0.02  # for all loads of a step that computes nothing, so that their requests are computed together
_SYNC_LOAD_BYTES: Final = 256 << 20  # bytes per step that a CPU copies sooner than it wakes another thread to copy them
_CLOSING_S: Final = 5.0
_SUSPENDING_S: Final = 30.0  # in which copies of a group end that have begun
_STORE_DELAY_S: Final = 0.003  # an engine on the host has chosen the token of the step by then, with the GIL to itself


class Zeroing(Enum):
    """Whether a step zeroes blocks before or after end_overwritten_stores(). Before, no store may outlive its step."""

    AFTER_STORES_END = 1
    BEFORE_STORES_END = 2


class RankGroup(msgspec.Struct, frozen=True):
    """One group on this rank.

    Attributes:
        cache: The engine's cache and the page layout.
        namespace: The namespace of its pages.
        copier: Copies its pages.
        blocks: The blocks of a page.
    """

    cache: PagedCache
    namespace: Namespace
    copier: AsyncCopier
    blocks: int = 1


class _Storing(msgspec.Struct, eq=False):
    """Commands of one group that are stored together, in their order."""

    store: StoreHandle
    blocks: frozenset[int]
    commands: Sequence[StoreCommand]
    cancelled: bool = False

    @property
    def retaining(self) -> set[str]:
        """The requests that keep their blocks until the store has ended."""
        return {command.request for command in self.commands if command.retains_blocks}


class WorkerHalf:
    """The worker's half of the connector. Called by one thread of vLLM's worker.

    The order of calls in each step is end_overwritten_stores(), load() and store(), finished().

    Args:
        client: This process's client.
        rank_groups: The groups in vLLM's order.
        event: Records and returns an event after all work that was given to the engine's stream; returns None on the
            CPU.
        zeroing: When the engine zeroes new blocks.
        first: The number of the first of the groups. Commands for other groups are for ranks with other layers or
            tokens.
    """

    def __init__(
        self,
        client: Client,
        rank_groups: Sequence[RankGroup],
        event: Callable[[], object],
        zeroing: Zeroing = Zeroing.AFTER_STORES_END,
        first: int = 0,
    ) -> None:
        self._client, self._event, self._zeroing = client, event, zeroing
        self.rank_groups = tuple(rank_groups)
        numbers = range(first, first + len(self.rank_groups))
        self._groups = dict(zip(numbers, self.rank_groups, strict=True))
        self._namespaces = {number: group.namespace for number, group in self._groups.items()}
        self._store_delay = _STORE_DELAY_S if zeroing is Zeroing.AFTER_STORES_END else 0.0
        self.counters = ConnectorCounters()
        self._storing: list[_Storing] = []
        self._loading: dict[str, Loading] = {}

    @property
    def on_host(self) -> bool:
        """Whether the engine computes on the CPU."""
        return all(rank_group.cache.cache.device == "cpu" for rank_group in self.rank_groups)

    def use_namespaces(self, namespaces: Sequence[Namespace]) -> None:
        """Stores the pages of later commands in these namespaces, one for each group."""
        self._namespaces = dict(zip(self._groups, namespaces, strict=True))

    def use_pages(self, pages: Sequence[PageLayout]) -> None:
        """Copies pages of these layouts from now on, one for each group. No copy was commanded before."""
        self.rank_groups = tuple(map(self._with_page, self.rank_groups, pages))
        self._groups = dict(zip(self._groups, self.rank_groups, strict=True))

    def _with_page(self, group: RankGroup, page: PageLayout) -> RankGroup:
        before = group.cache
        if page == before.page:
            return group
        cache = PagedCache(before.cache, page, before.shard)
        # First, so that an arena that is being pinned stays pinned. With the settings of the copier before: an engine
        # that runs must not fail by a settings file that was damaged since its start.
        copier = open_copier(self._client, cache, group.copier.settings)
        group.copier.close(0.0)
        return RankGroup(cache, group.namespace, copier, group.blocks * page.tokens // before.page.tokens)

    def suspend(self) -> bool:
        """Returns whether all copies have ended, as the cache loses its memory. No copy begins before resume()."""
        self._wait_or_cancel(self._storing)
        ended = [group.copier.close(_SUSPENDING_S) for group in self.rank_groups]
        return all(ended)

    def resume(self) -> None:
        """Copies again, after suspend(), now that the cache has memory at its old addresses."""
        # With the settings of before, as in _with_page().
        copiers = [open_copier(self._client, group.cache, group.copier.settings) for group in self.rank_groups]
        pairs = zip(self.rank_groups, copiers, strict=True)
        self.rank_groups = tuple(msgspec.structs.replace(group, copier=copier) for group, copier in pairs)
        self._groups = dict(zip(self._groups, self.rank_groups, strict=True))

    def end_overwritten_stores(self, commands: StepCommands) -> None:
        """Waits for the stores that read blocks which this step writes. Called before the step is computed.

        Stores that take too long are cancelled.
        """
        if self._storing and commands.written:
            self._wait_or_cancel(storing for storing in self._storing if storing.blocks & commands.written)

    def load(self, loads: Iterable[LoadCommand]) -> None:
        """Begins loads; on the CPU small loads are completed by this call.

        A request keeps its blocks until finished() has returned it.
        """
        sync_bytes = self._sync_load_bytes
        for command in map(self._share_of, loads):
            sync_bytes -= self._bytes_of(command)
            self._loading[command.request] = self._start_load(command) if sync_bytes < 0 else self._load_now(command)

    def store(self, stores: Iterable[StoreCommand]) -> None:
        """Begins stores. Called after all work of the step was given to the engine's stream."""
        event = self._event()  # behind the step: no store reads a block before the step has written it
        for commands in batches_of([command for command in stores if command.group in self._groups]):
            first, blocks = commands[0], [block for command in commands for block in command.blocks]
            rank_group = self._groups[first.group]
            data = b"".join(command.keys for command in commands)
            keys = Keys(self._namespace_of(first), data, prompts_of(commands))
            slots = slots_to_store(rank_group.cache, blocks, rank_group.blocks)
            store = rank_group.copier.store(keys, slots, event, self._store_delay)
            self._storing.append(_Storing(store, frozenset(blocks) - {0}, commands))
        if self._storing and self._zeroing is Zeroing.BEFORE_STORES_END:
            _wait_for_step(event)  # the next one zeroes blocks before this rank can end stores
            self._wait_or_cancel(self._storing)

    def finished(self, idle: bool) -> Finished:  # noqa: FBT001
        """Returns what has ended since the last call.

        `idle`: the step computes nothing, so stores begin at once, and this waits briefly for loads.
        """
        if not self._loading and not self._storing:
            return NOTHING_FINISHED  # as in most steps
        if idle:
            self._begin(self._storing)
            self._wait_a_moment()
        stored, loaded = self._stored(), {request for request, loading in self._loading.items() if loading.ended}
        if not stored and not loaded:
            return NOTHING_FINISHED  # as in most steps: only its last store keeps the blocks of a request
        ended = {request: self._loading.pop(request) for request in loaded}
        failed = {request: loading for request, loading in ended.items() if not loading.whole}
        self.counters.add("failed_loads", len(failed))
        return Finished(
            stored,
            frozenset(loaded),
            frozenset(failed),
            frozenset(block for loading in failed.values() for block in loading.blocks),
            {name: loading.seconds for name, loading in ended.items() if name not in failed and loading.seconds > 0},
        )

    def _namespace_of(self, command: StoreCommand) -> Namespace:
        """Returns the namespace of a command's pages. After a reset of the cache all commands have another salt."""
        namespace = self._namespaces[command.group]
        if namespace.salt != command.salt:
            namespace = self._namespaces[command.group] = msgspec.structs.replace(namespace, salt=command.salt)
        return namespace

    def close(self) -> None:
        """Waits at most some seconds for copies in progress, then closes the client."""
        for rank_group in self.rank_groups:
            rank_group.copier.close(_CLOSING_S)
        self._client.close()

    def _wait_or_cancel(self, stores: Iterable[_Storing]) -> None:
        """Gives all stores together some time to end, then cancels the rest."""
        waited, deadline = list(stores), Deadline(_CANCEL_AFTER_S)
        self._begin(waited)  # all of them first, so that they are copied while the first one is waited for
        for storing in waited:
            if not storing.cancelled and not storing.store.wait_ended(deadline.left):
                storing.store.cancel()
                storing.cancelled = True

    @staticmethod
    def _begin(stores: Iterable[_Storing]) -> None:
        """Ends the delay of stores."""
        for storing in stores:
            storing.store.begin()

    @property
    def _sync_load_bytes(self) -> int:
        """The bytes to load in the calling thread; 0 on a GPU, or if the load bandwidth is limited."""
        capped = any(rank_group.copier.load_bandwidth for rank_group in self.rank_groups)
        return _SYNC_LOAD_BYTES if self.on_host and not capped else 0

    def _share_of(self, command: LoadCommand) -> LoadCommand:
        """Returns the part of a load that is for this rank."""
        own = tuple(load for load in command.groups if load.group in self._groups)
        return command if len(own) == len(command.groups) else LoadCommand(command.request, own)

    def _bytes_of(self, command: LoadCommand) -> int:
        return sum(self._pages_of(group) * self._groups[group.group].cache.page.nbytes for group in command.groups)

    def _pages_of(self, load: GroupLoad) -> int:
        return len(load.blocks) // self._groups[load.group].blocks

    def _start_load(self, command: LoadCommand) -> Loading:
        loads = tuple(self._start_group(group) for group in command.groups)
        short = any(load.pages < self._pages_of(group) for load, group in zip(loads, command.groups, strict=True))
        return Loading(loads, command.blocks, short)

    def _start_group(self, group: GroupLoad) -> LoadHandle:
        rank_group = self._groups[group.group]
        slots = slots_to_load(rank_group.cache, group.blocks, rank_group.blocks)
        return rank_group.copier.load(group.pages, slots, after=self._event())

    def _load_now(self, command: LoadCommand) -> Loading:
        began = clock.now()
        short = any(self._load_group(group) < self._pages_of(group) for group in command.groups)
        return Loading((), command.blocks, short, (began, clock.now()))

    def _load_group(self, group: GroupLoad) -> int:
        rank_group = self._groups[group.group]
        slots = slots_to_load(rank_group.cache, group.blocks, rank_group.blocks)
        with adopt(self._client.session, group.pages) as match:
            return self._client.load(match, Blocks(rank_group.cache, slots))

    def _stored(self) -> frozenset[str]:
        """Returns the requests that kept blocks for stores and do not need them any more."""
        ended = [storing for storing in self._storing if storing.store.ended]
        if not ended:
            return frozenset()
        self._storing = [storing for storing in self._storing if storing not in ended]
        self.counters.add("stored_pages", sum(storing.store.wait(0.0).stored for storing in ended))
        # A request may have stores of several groups: its blocks are free when the last of them has ended.
        released = set().union(*(storing.retaining for storing in ended))
        return frozenset(released.difference(*(storing.retaining for storing in self._storing)))

    def _wait_a_moment(self) -> None:
        deadline = Deadline(_IDLE_S)
        for loading in self._loading.values():
            for load in loading.loads:
                load.wait_ended(deadline.left)


def _wait_for_step(event: Any) -> None:
    """Waits for the event before which no store copies, for a limited time, which CUDA's own wait lacks."""
    deadline = Deadline(_STEP_S)
    with suppress(RuntimeError):  # the device has failed, which the engine reports itself
        while event is not None and not event.query() and not deadline.is_over:
            clock.sleep(_NAP_S)
