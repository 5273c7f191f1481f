"""Loads the pages of a batch layer by layer while the model computes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from pagetier.client.async_copy.load_job import LoadHandle
from pagetier.client.engines.sglang.linker.lookups import Hit
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from pagetier.client.match import Match, MatchHandle
from pagetier.shm.clock import Deadline

log = logging.getLogger("pagetier.sglang")

_LAYER_S: Final = 30.0  # for one layer; a copy that takes longer has failed
_END_S: Final = 30.0


class GroupPages(msgspec.Struct, frozen=True, eq=False):
    """Pages of one group to load, one for each block."""

    match: Match
    blocks: Sequence[int]


class QueuedLoad(msgspec.Struct, frozen=True, eq=False):
    """The load of one request that has not begun."""

    hit: Hit
    groups: tuple[GroupPages, ...]


class PoolLoad(msgspec.Struct, frozen=True, eq=False):
    """The load of the pages of one group for all requests of a batch.

    Attributes:
        handle: The load.
        layers: The layer of the group for each layer of the model that belongs to it.
        pages: The number of pages that have to be loaded.
    """

    handle: LoadHandle
    layers: Mapping[int, int]
    pages: int


class LoadingBatch:
    """The loads of one batch.

    Args:
        stream: Returns the stream on which the calling thread enqueues the model's work; None on a CPU, where the
            calling thread itself waits.
    """

    def __init__(self, stream: Callable[[], object] | None) -> None:
        self._stream = stream
        self._loads: list[PoolLoad] = []
        self._valid = True

    def begin(self, groups: Sequence[EngineGroup], queued: Sequence[QueuedLoad], after: object) -> None:
        """Begins the loads of all requests: one for each group, so that the first layer comes first.

        Args:
            groups: The groups.
            queued: The loads of the requests. Their pins are released.
            after: An event of the engine after which the blocks may be written; None for none.
        """
        try:
            for at, group in enumerate(groups):
                self._loads.append(_begin(group, [load.groups[at] for load in queued], after))
        except Exception:
            self._valid = False
            log.exception("pagetier: a load cannot begin, its requests are aborted")
        finally:  # the copies have pinned the pages themselves
            for load in queued:
                load.hit.release()

    def wait(self, layer: int) -> None:
        """Makes the engine's stream wait until a layer of the model is loaded; on a CPU waits itself."""
        for load in self._loads:
            own = load.layers.get(layer)
            if own is not None:
                self._valid &= self._wait_for(load.handle, own)

    def finish(self) -> bool:
        """Waits until nothing is written any more, and returns whether all pages were loaded in time."""
        deadline = Deadline(_END_S)
        for load in self._loads:
            if not load.handle.wait_ended(deadline.left):
                load.handle.cancel()
                log.error("pagetier: a load did not end within %.0f s, its requests are aborted", _END_S)
        return self._valid and all(_is_whole(load) for load in self._loads)

    def _wait_for(self, handle: LoadHandle, layer: int) -> bool:
        if self._stream is None:
            return handle.wait(layer, _LAYER_S)
        return handle.make_stream_wait(self._stream(), layer, _LAYER_S)


class LayerCounter:
    """What SGLang's pools ask before they use a layer: SGLang's `layer_done_counter`.

    Attributes:
        consumer_index: The batch that the model computes; -1 for one that loads nothing.
    """

    def __init__(self) -> None:
        self.consumer_index = -1
        self._last = -1
        self._batches: dict[int, LoadingBatch] = {}

    def set_consumer(self, index: int) -> None:
        """Says which batch the model computes from now on."""
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        """Waits for a layer of this pipeline stage, counted from 0, see LoadingBatch.wait()."""
        batch = self._batches.get(self.consumer_index)
        if batch is not None:
            batch.wait(threshold)

    def begin(self, batch: LoadingBatch) -> int:
        """Returns the index of a batch that has begun."""
        self._last += 1
        self._batches[self._last] = batch
        return self._last

    def finish(self, index: int) -> bool:
        """Returns whether all pages of a batch were loaded, after it has ended."""
        batch = self._batches.pop(index, None)
        return batch is None or batch.finish()

    def reset(self) -> None:
        """Waits until all batches have ended, and forgets them."""
        for index in list(self._batches):
            self.finish(index)
        self.consumer_index = self._last = -1


def _begin(group: EngineGroup, pages: Sequence[GroupPages], after: object) -> PoolLoad:
    blocks = np.asarray([block for one in pages for block in one.blocks], np.int64)
    handle = group.cache.copier().load(_joined(pages), group.cache.slots_of(blocks, len(blocks)), after=after)
    return PoolLoad(handle, group.layers, len(blocks))


def _joined(pages: Sequence[GroupPages]) -> Match | MatchHandle:
    """Returns the first pages of several matches as one. Empty if they are in different segments."""
    if len(pages) == 1:
        return pages[0].match
    handles = [one.match.to_handle().first(len(one.blocks)) for one in pages]
    if len({one.segments_id for one in handles}) > 1:
        return MatchHandle(0, handles[0].page_tokens, b"", b"")
    entries, serials = b"".join(one.entries for one in handles), b"".join(one.serials for one in handles)
    return MatchHandle(handles[0].segments_id, handles[0].page_tokens, entries, serials)


def _is_whole(load: PoolLoad) -> bool:
    handle = load.handle
    return handle.pages == load.pages and not handle.failed and handle.ready(handle.layers - 1)
