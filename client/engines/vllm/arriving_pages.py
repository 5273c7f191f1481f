"""Records the pages that are being loaded, so that other requests wait for them instead of loading them again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

import msgspec

from pagetier.client.engines.vllm.request_state import Tracked
from pagetier.client.groups import FullAttention, Group
from pagetier.client.keys import Keys
from pagetier.shm._core import KEY_BYTES

_WORTH: Final = 8  # a request waits for an eighth of its prompt, and for loads of which it needs an eighth


class PrefixCache(Enum):
    """Whether vLLM has a prefix cache of its own, in which a request finds the pages that were loaded for another."""

    ON = 1
    OFF = 2


class _Arrival(msgspec.Struct, frozen=True, eq=False):
    """A load: the keys of its pages, and the number of tokens that its request has when it has ended."""

    keys: list[bytes]
    tokens: int


class ArrivingPages:
    """The pages on their way into vLLM's own prefix cache.

    They are on their way from the begin of a load until the end of the first step that vLLM schedules after the load:
    in this step vLLM puts them into its cache. Up to 0.30 it may ask for a waiting request earlier in the step, and it
    finds a recurrent state from the next step on.

    Args:
        prefix_cache: Whether vLLM has that cache. Without it no request waits.
    """

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self._prefix_cache = prefix_cache
        self._arrivals: dict[str, _Arrival] = {}
        self._requests: dict[bytes, str] = {}
        self._ended: set[str] = set()

    def __len__(self) -> int:
        """Returns the number of pages."""
        return len(self._requests)

    def add(self, tracked: Tracked, tokens: int) -> None:
        """Records a load that begins: what `tracked` needs for a hit at `tokens` beyond vLLM's own hit."""
        if self._prefix_cache is PrefixCache.OFF:
            return
        request = tracked.request.request_id
        self.remove(request)
        loaded = [
            key
            for group, keys in zip(tracked.groups, tracked.keys, strict=True)
            for key in _split(keys.data, _needed(group.kind, tracked.computed, tokens))
        ]
        self._arrivals[request] = _Arrival(loaded, tokens)
        self._requests.update(dict.fromkeys(loaded, request))

    def end_load(self, request: str) -> None:
        """Records that a load has ended successfully."""
        if request in self._arrivals:
            self._ended.add(request)

    def end_step(self) -> None:
        """Removes the pages of loads that had ended before this step."""
        if len(self._ended) == len(self._arrivals):
            self.clear()  # the usual case, and much faster
        for request in tuple(self._ended):
            self.remove(request)

    def remove(self, request: str) -> None:
        """Removes the pages of a request, which will not get into vLLM's own cache any more, or are in it."""
        arrival = self._arrivals.pop(request, None)
        self._ended.discard(request)
        requests = self._requests
        for key in arrival.keys if arrival is not None else ():
            if requests.get(key) == request:
                del requests[key]

    def clear(self) -> None:
        """Removes all pages."""
        self._arrivals.clear()
        self._requests.clear()
        self._ended.clear()

    def must_wait(self, tracked: Tracked, computed: int) -> bool:
        """Returns whether a request waits for the loads of others; it needs no lookup in the index.

        Before vLLM gets an answer, a request that finds less than it waited for waits once more at most. Each other
        wait is for more tokens than the one before, so that their number is bounded.

        Args:
            tracked: The request.
            computed: The number of its tokens in vLLM's own prefix cache.
        """
        self.remove(tracked.request.request_id)  # of a load before, if vLLM has freed its blocks
        found_less = computed < tracked.awaited_tokens
        if found_less and not self._arrivals.keys().isdisjoint(tracked.awaited):
            return True
        tokens = self._next_hit(tracked, computed) if self._requests else computed
        awaited = frozenset(self._awaited(tracked, computed, tokens))
        too_often = found_less and tracked.waited_again
        if not awaited or too_often or not self._is_worth_it(tracked, computed, tokens, awaited):
            tracked.awaited, tracked.awaited_tokens, tracked.waited_again = frozenset(), 0, False
            return False
        tracked.waited_again |= found_less
        tracked.awaited, tracked.awaited_tokens = awaited, max(tokens, tracked.awaited_tokens)
        return True

    def _next_hit(self, tracked: Tracked, computed: int) -> int:
        """Returns the longest hit that vLLM's own cache will have when the loads have ended; else `computed`."""
        grain = tracked.grain
        longest = (int(tracked.request.num_tokens) - 1) // grain * grain
        for group, keys in zip(tracked.groups, tracked.keys, strict=True):
            if isinstance(group.kind, FullAttention):
                longest = min(longest, self._run(keys, group.kind.page_tokens, computed, longest) // grain * grain)
        if longest <= computed:
            return computed
        ends = {arrival.tokens for arrival in self._arrivals.values() if computed < arrival.tokens < longest}
        hits = (longest, *sorted(ends, reverse=True))
        return next((tokens for tokens in hits if self._will_have(tracked, computed, tokens)), computed)

    def _run(self, keys: Keys, page_tokens: int, computed: int, limit: int) -> int:
        """Returns the tokens up to the first page from `computed` on that is not on its way.

        Keys form a chain, and so all pages before one that is on its way are on their way or in vLLM's cache.
        """
        pages = range(computed // page_tokens, min(limit // page_tokens, len(keys)))
        missing = bisect_left(pages, 1, key=lambda page: int(keys[page] not in self._requests))
        return (pages.start + missing) * page_tokens

    def _will_have(self, tracked: Tracked, computed: int, tokens: int) -> bool:
        """Returns whether all windows and states that a hit at `tokens` needs are on their way."""
        return all(
            keys[page] in self._requests
            for group, keys in zip(tracked.groups, tracked.keys, strict=True)
            if not isinstance(group.kind, FullAttention)
            for page in _needed(group.kind, computed, tokens)
        )

    def _awaited(self, tracked: Tracked, computed: int, tokens: int) -> Iterator[str]:
        """Yields the requests that load the first and the last page of each group."""
        if tokens == computed:
            return
        for group, keys in zip(tracked.groups, tracked.keys, strict=True):
            pages = _needed(group.kind, computed, tokens)
            found = (self._requests.get(keys[page]) for page in (*pages[:1], *pages[-1:]))
            yield from (request for request in found if request is not None)

    def _is_worth_it(self, tracked: Tracked, computed: int, tokens: int, awaited: Iterable[str]) -> bool:
        """Returns whether the pages are a large part of the prompt and of what the loads bring.

        Two prompts that share one page do not wait for each other's other pages, but load that page twice.
        """
        gain, ends = tokens - computed, max(self._arrivals[request].tokens for request in awaited)
        if ends > tokens and gain <= tracked.grain:
            return False
        return _WORTH * gain >= max(int(tracked.request.num_tokens), ends) - computed


def _needed(kind: Group, computed: int, tokens: int) -> range:
    """Returns the pages that a hit at `tokens` needs beyond the `computed` ones."""
    pages = kind.pages(tokens)
    return range(max(pages.start, computed // kind.page_tokens), pages.stop)


def _split(keys: bytes, pages: range) -> list[bytes]:
    """Returns the keys of some pages, faster than by indexing Keys."""
    return [keys[at : at + KEY_BYTES] for at in range(pages.start * KEY_BYTES, pages.stop * KEY_BYTES, KEY_BYTES)]
