"""Records the pages that are being loaded, so that other requests wait for them instead of loading them again."""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import Final

import msgspec

from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.groups import Group
from pagetier.client.keys import Keys

_WORTH: Final = 8  # a request waits for an eighth of its prompt, and for loads of which it needs an eighth
_MARKED: Final = 8


class PrefixCache(Enum):
    """Whether vLLM has a prefix cache of its own, in which a request finds the pages that were loaded for another."""

    ON = 1
    OFF = 2


class _Arrival(msgspec.Struct, frozen=True, eq=False):
    """A load from `computed` to `tokens` tokens of a prompt.

    Attributes:
        request: The ID of the request.
        keys: The keys of the whole prompt, in the group with the shortest pages.
        computed: The number of tokens that vLLM had in its own cache.
        tokens: The number of tokens that the request has when the load has ended.
        marks: The keys under which the load is found.
    """

    request: str
    keys: Keys
    computed: int
    tokens: int
    marks: list[bytes]


class ArrivingPages:
    """The pages on their way into vLLM's own prefix cache.

    They are on their way from the begin of a load until the end of the first step that vLLM schedules after the load:
    in this step vLLM puts them into its cache. Up to 0.30 it may ask for a waiting request earlier in the step, and it
    finds a recurrent state from the next step on.

    Keys form a hash chain: two prompts with the same key of one page agree in all tokens up to its end, and so in the
    keys of all groups up to there. A load is therefore found under the keys of its first page and of each eighth page.

    Args:
        prefix_cache: Whether vLLM has that cache. Without it no request waits.
    """

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self._prefix_cache = prefix_cache
        self._arrivals: dict[str, _Arrival] = {}
        self._marks: dict[bytes, _Arrival] = {}
        self._ended: set[str] = set()

    def __len__(self) -> int:
        """Returns the number of loads."""
        return len(self._arrivals)

    def add(self, tracked: RequestState, tokens: int) -> None:
        """Records a load that begins: what `tracked` needs for a hit at `tokens` beyond vLLM's own hit.

        The caller has called decide_wait() since an earlier load of the request.
        """
        if self._prefix_cache is PrefixCache.OFF:
            return
        request, keys = tracked.request.request_id, tracked.finest_keys
        pages = _pages(keys, tracked.computed, tokens)
        marks = [keys[page] for page in (*pages[:1], *_marked(pages))]
        arrival = self._arrivals[request] = _Arrival(request, keys, tracked.computed, tokens, marks)
        self._marks.update(dict.fromkeys(marks, arrival))

    def end_load(self, request: str) -> None:
        """Records that a load has ended successfully."""
        if request in self._arrivals:
            self._ended.add(request)

    def end_step(self) -> None:
        """Removes the loads that had ended before this step."""
        for request in tuple(self._ended):
            self.remove(request)

    def remove(self, request: str) -> None:
        """Removes the load of a request: vLLM's own cache has the pages, or will never get them."""
        arrival = self._arrivals.pop(request, None)
        self._ended.discard(request)
        for mark in arrival.marks if arrival is not None else ():
            if self._marks.get(mark) is arrival:
                del self._marks[mark]

    def clear(self) -> None:
        """Removes all loads."""
        self._arrivals.clear()
        self._marks.clear()
        self._ended.clear()

    def decide_wait(self, tracked: RequestState, computed: int) -> bool:
        """Decides whether a request waits for the load of another, and records it; it needs no lookup in the index.

        Before vLLM gets an answer, a request that finds less than it waited for waits once more at most. Each other
        wait is for more tokens than the one before, so that their number is bounded.

        Args:
            tracked: The request.
            computed: The number of its tokens in vLLM's own prefix cache.

        Returns:
            Whether it waits.
        """
        self.remove(tracked.request.request_id)  # of a load before, if vLLM has freed its blocks
        found_less = computed < tracked.awaited_tokens
        if found_less and tracked.awaited in self._arrivals:
            return True
        arrival = self._find(tracked, computed) if self._arrivals else None
        tokens = _hit_after(arrival, tracked, computed) if arrival is not None else computed
        too_often = found_less and tracked.waited_again
        if arrival is None or too_often or not _is_worth_it(arrival, tracked, computed, tokens):
            tracked.awaited, tracked.awaited_tokens, tracked.waited_again = "", 0, False
            return False
        tracked.waited_again |= found_less
        tracked.awaited, tracked.awaited_tokens = arrival.request, max(tokens, tracked.awaited_tokens)
        return True

    def _find(self, tracked: RequestState, computed: int) -> _Arrival | None:
        """Returns the load that has most of the pages from `computed` on."""
        keys = tracked.finest_keys
        pages = _pages(keys, computed, int(tracked.request.num_tokens) - 1)
        marked = _marked(pages)
        common = bisect_left(marked, 1, key=lambda page: int(keys[page] not in self._marks))
        if common:
            return self._marks[keys[marked[common - 1]]]
        return self._marks.get(keys[pages.start]) if pages else None


def _hit_after(arrival: _Arrival, tracked: RequestState, computed: int) -> int:
    """Returns the hit that vLLM's own cache will have when a load has ended; `computed` if it will not be longer."""
    keys = tracked.finest_keys
    pages = _pages(keys, computed, min(arrival.tokens, int(tracked.request.num_tokens) - 1))
    common = bisect_left(pages, 1, key=lambda page: int(keys[page] != arrival.keys[page]))
    tokens = (pages.start + common) * keys.namespace.page_tokens // tracked.grain * tracked.grain
    brings = all(
        _first_needed(group.kind, computed, tokens) >= _first_needed(group.kind, arrival.computed, arrival.tokens)
        for group in tracked.groups
    )
    return tokens if brings and tokens > computed else computed


def _is_worth_it(arrival: _Arrival, tracked: RequestState, computed: int, tokens: int) -> bool:
    """Returns whether the pages are a large part of the prompt and of what the load brings.

    Two prompts that share one page do not wait for each other's other pages, but load that page twice.
    """
    gain = tokens - computed
    if arrival.tokens > tokens and gain <= tracked.grain:
        return False
    return gain > 0 and _WORTH * gain >= max(int(tracked.request.num_tokens), arrival.tokens) - computed


def _pages(keys: Keys, begins: int, ends: int) -> range:
    """Returns the pages between two numbers of tokens that have keys."""
    page_tokens = keys.namespace.page_tokens
    return range(begins // page_tokens, min(ends // page_tokens, len(keys)))


def _marked(pages: range) -> range:
    """Returns each eighth page of a prompt."""
    return range(-(-pages.start // _MARKED) * _MARKED, pages.stop, _MARKED)


def _first_needed(kind: Group, computed: int, tokens: int) -> int:
    """Returns the first token whose state a hit at `tokens` needs beyond the `computed` ones."""
    return max(kind.pages(tokens).start * kind.page_tokens, computed)
