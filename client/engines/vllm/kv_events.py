"""Announces the pages that an engine could load as vLLM's KV cache events: what comes, and what leaves."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.vllm.announced_pages import AnnouncedPages, Change, KnownPage
from pagetier.client.engines.vllm.request_state import Tracked
from pagetier.shm._core import KEY_BYTES, EventsResult, Session, TierFlag

MEDIA: Final = {TierFlag.MEMORY: "CPU", TierFlag.DISK: "STORAGE"}
"""The medium of each tier. Routers take an unknown one for a GPU."""

_MOST_PAGES: Final = 1 << 18
_LINGER_S: Final = 0.25  # after a step with stores or a new daemon, by when their pages can be announced


class Announcer:
    """Follows where the pages of this engine's requests are, and returns the changes as events.

    The daemon's ring of events names the pages that have changed. Where a page is now is read from the index, which
    needs no message. So an event that was missed, or that comes twice, cannot make routers believe anything untrue for
    longer than until the next sweep over all pages. Called by the one thread of vLLM's scheduler.

    Args:
        client: This process's client.
        specs: vLLM's KVCacheSpec of each group.
        lease: Seconds for which pages stay announced while there is no daemon, or while its disk is being opened.
        resets: Returns whether vLLM's own prefix cache was emptied since the last call, which makes routers forget all
            pages of this engine.
        most_pages: The most pages that are announced.
    """

    def __init__(
        self,
        client: Client,
        specs: Iterable[Any],
        lease: float,
        resets: Callable[[], bool],
        most_pages: int = _MOST_PAGES,
    ) -> None:
        self._client, self._lease, self._resets = client, lease, resets
        self._of_groups = [{"group_idx": at, **fields_of_group(spec)} for at, spec in enumerate(specs)]
        self._pages = AnnouncedPages(most_pages)
        self._session: Session | None = None
        self._served = _Absence(lease)
        self._disk = _Absence(lease)
        self._events: list[Any] = []
        self._linger_until = 0.0
        self._unfinished = False

    def learn(self, tracked: Tracked) -> None:
        """Adds the pages of a request that have got a hash. It is a cheap check if there are none."""
        hashes = tracked.request.block_hashes
        if tracked.is_stale or tracked.learned_hashes == len(hashes):
            return
        for at, (group, keys) in enumerate(zip(tracked.groups, tracked.keys, strict=True)):
            of_pages = hashes[group.hashes - 1 :: group.hashes]
            for page in range(tracked.learned_hashes // group.hashes, min(len(keys), len(of_pages))):
                key = keys.data[page * KEY_BYTES : (page + 1) * KEY_BYTES]
                self._pages.learn(key, _known_page(tracked.request, at, page, group.kind.page_tokens, of_pages))
        tracked.learned_hashes = len(hashes)

    def scheduled(self, requests: Iterable[Tracked | None], stores: Sequence[object]) -> None:
        """Adds the pages of requests. Those that are stored are announced even if no other step follows."""
        if stores:
            self._linger_until = time.monotonic() + _LINGER_S
        for tracked in requests:
            if tracked is not None:
                self.learn(tracked)

    @property
    def waits(self) -> bool:
        """Whether another step could announce pages: some were stored just now, or are still to be located."""
        return self._unfinished or time.monotonic() < self._linger_until

    def clear(self) -> None:
        """Removes all pages: this engine cannot load them any more."""
        self._events += self._as_events(self._pages.clear())

    def taken(self) -> list[Any]:
        """Returns the events since the last call."""
        if self._resets():
            self._pages.announce_again()
        now = time.monotonic()
        session = self._client.session if self._client.attached else None
        served = session is not None and self._read(session)
        if self._served.ended(now, there=served):
            self._events += self._as_events(self._pages.withdraw())
        if served and session is not None:
            self._events += self._as_events(self._pages.update(session, self._assumed(session, now)))
        self._unfinished = served and self._pages.waits
        events, self._events = self._events, []
        return events

    def _read(self, session: Session) -> bool:
        """Reads the ring. Returns False if the daemon records nothing at this time."""
        if session is not self._session:
            self._session, self._linger_until = session, time.monotonic() + _LINGER_S
            self._pages.sweep()
        while True:
            seen = session.read_events()
            self._pages.touch(seen.keys)
            if seen.result == EventsResult.MISSED:
                self._pages.sweep()
            if not seen.keys:
                break
        if self._served.is_over:
            self._pages.sweep()
        return seen.result != EventsResult.OFF

    def _assumed(self, session: Session, now: float) -> int:
        """Returns the disk while it may come back with its pages: routers see no gap when its worker is replaced."""
        if self._disk.ended(now, there=session.disk_complete):
            self._pages.sweep()
        return TierFlag.DISK if self._disk.lasts else 0

    def _as_events(self, changes: Sequence[Change]) -> Iterator[Any]:
        from vllm.distributed.kv_events import BlockRemoved
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        removed: dict[tuple[str, int], list[Any]] = {}
        for change in changes:
            for tier, medium in MEDIA.items():
                if change.came & tier:
                    yield self._stored(change.page, medium)
                elif change.left & tier:
                    removed.setdefault((medium, change.page.group), []).append(external(change.page.hash))
        known = _fields_of(BlockRemoved)
        for (medium, group), hashes in removed.items():
            fields = {"group_idx": group, "locality": "LOCAL"}
            yield BlockRemoved(block_hashes=hashes, medium=medium, **_only(fields, known))

    def _stored(self, page: KnownPage, medium: str) -> Any:
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        fields = {"locality": "LOCAL", **self._of_groups[page.group]}
        if page.extra_keys:
            fields["extra_keys"] = [page.extra_keys]
        return BlockStored(
            block_hashes=[external(page.hash)],
            parent_block_hash=external(page.parent) if page.parent is not None else None,
            token_ids=page.tokens.tolist(),
            block_size=len(page.tokens),
            lora_id=page.lora.adapter_id if page.lora else None,
            medium=medium,
            lora_name=page.lora.name if page.lora else None,
            **_only(fields, _fields_of(BlockStored)),
        )


class _Absence:
    """How long something has been absent, up to a limit in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None
        self.is_over = False

    @property
    def lasts(self) -> bool:
        """Whether it is absent, and has not been for longer than the limit."""
        return self._since is not None and not self.is_over

    def ended(self, now: float, *, there: bool) -> bool:
        """Returns whether the limit has passed just now."""
        if there:
            self._since, self.is_over = None, False
            return False
        self._since = now if self._since is None else self._since
        was_over, self.is_over = self.is_over, now - self._since >= self._limit
        return self.is_over and not was_over


def prefix_cache_resets(pool: Any) -> Callable[[], bool]:
    """Returns a function that returns whether vLLM's own prefix cache was emptied since its last call.

    vLLM then makes a new table of cached blocks, and publishes AllBlocksCleared, which has no medium.

    Args:
        pool: vLLM's BlockPool, or None.
    """
    table = getattr(pool, "cached_block_hash_to_block", None)

    def were_reset() -> bool:
        nonlocal table
        before, table = table, getattr(pool, "cached_block_hash_to_block", None)
        return table is not before

    return were_reset


def fields_of_group(spec: Any) -> dict[str, Any]:
    """Returns the fields by which routers tell groups apart: the kind of state and its window. Empty for old versions.

    Without them routers drop the blocks of all groups but the first.
    """
    from vllm.v1 import kv_cache_interface as interface

    if not hasattr(interface, "get_kv_cache_spec_kind"):
        return {}
    return {
        "kv_cache_spec_kind": interface.get_kv_cache_spec_kind(spec).value,
        "kv_cache_spec_sliding_window": interface.get_kv_cache_spec_sliding_window(spec),
    }


def _fields_of(kind: Any) -> frozenset[str]:
    """Returns the fields of an event, which depend on vLLM's version."""
    return frozenset(field.name for field in msgspec.structs.fields(kind))


def _only(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in known}


def _known_page(request: Any, group: int, page: int, tokens: int, hashes: Sequence[bytes]) -> KnownPage:
    begins, ends = page * tokens, (page + 1) * tokens
    return KnownPage(
        group,
        page,
        hashes[page],
        hashes[page - 1] if page else None,
        array("I", request.all_token_ids[begins:ends]),
        _extra_keys(request, begins, ends),
        getattr(request, "lora_request", None),
    )


def _extra_keys(request: Any, begins: int, ends: int) -> tuple[Any, ...] | None:
    """Returns what vLLM hashes of these tokens besides their IDs, in the form that vLLM publishes."""
    from vllm.v1.core import kv_cache_utils

    keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, begins, ends, 0)
    published = getattr(kv_cache_utils, "to_event_extra_keys", list)([keys])
    return published[0] if published else None
