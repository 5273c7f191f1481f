"""Loads the cached beginning of a prompt into a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.llama_cpp.context import State
from pagetier.client.engines.llama_cpp.paged_state import PagedState
from pagetier.client.engines.llama_cpp.sequence_tokens import SequenceTokens
from pagetier.client.group_match import GroupMatch
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.session_lookups import count_lookup, sample_lookup
from pagetier.shm.clock import Deadline

_BATCH_BYTES = 4 << 20  # pages are put back while they are in a CPU's own cache

PageSizes = Mapping[int, int]
"""The bytes of the pages of one half of a hit, by their number in the prompt."""


class PageLoads:
    """The loads of one context.

    Args:
        client: The client.
        state: The state of the context's sequences.
    """

    def __init__(self, client: Client, state: PagedState) -> None:
        self._client, self._state = client, state

    def load(self, tokens: SequenceTokens, seq: int, present: int, timeout: float | None) -> int:
        """Puts the longest hit into a sequence, which keeps its first `present` tokens if those are more.

        Returns:
            The number of tokens that the sequence has.
        """
        present = max(0, min(present, len(tokens) - 1, self._state.context.length(seq)))
        limit = max(0, len(tokens) - 1) // self._state.page_tokens * self._state.page_tokens
        if not tokens.groups or limit <= present or self._client.session is None:
            return self._keep(seq, present)
        with self._find(tokens, limit, self._client.timeout if timeout is None else timeout) as found:
            sizes = _page_sizes(found)
            if not sizes:
                return self._keep(seq, present)
            if found.tokens <= present and (kept := self._keep(seq, present)) == present:
                return kept
            return self._replace(seq, found, sizes)

    def _keep(self, seq: int, present: int) -> int:
        """Removes what follows the first tokens of a sequence; all of it if its state cannot be cut there."""
        context = self._state.context
        if present and self._state.whole_before(seq, present) and context.remove(seq, present):
            return present
        context.remove(seq)
        return 0

    def _find(self, tokens: SequenceTokens, limit: int, timeout: float) -> GroupMatch:
        """Returns the longest hit, after what other tiers have of it was read into memory."""
        first = self._client.find_groups(tokens.groups, limit)
        sample_lookup(self._client.session, first)
        found = first
        if PromptReader(self._client).read(first, 0, Deadline(timeout)):
            with first:
                found = self._client.find_groups(tokens.groups, limit)
        self._count(first, found)
        return found

    def _count(self, first: GroupMatch, found: GroupMatch) -> None:
        from_memory = min(first.tokens, found.tokens)
        on_host = min(first.available_tokens, found.tokens) - from_memory
        counts = {"memory_tokens": from_memory, "disk_tokens": on_host, "missed_tokens": first.asked - found.tokens}
        remote = found.tokens - from_memory - on_host
        lookup = msgspec.structs.replace(first.lookup, **counts, remote_tokens=remote)
        count_lookup(self._client.session, lookup)

    def _replace(self, seq: int, found: GroupMatch, sizes: Sequence[PageSizes]) -> int:
        """Replaces a sequence by a hit; it is empty if a page cannot be put back."""
        self._state.context.remove(seq)
        batches = _batches(sizes)
        whole = all(self._put_back(seq, self._copied(found, sizes, pages)) for pages in batches)
        self._state.end_write()
        if not whole:
            self._state.context.remove(seq)
        return found.tokens if whole else 0

    def _put_back(self, seq: int, states: Sequence[State]) -> bool:
        return bool(states) and all(self._state.write(seq, state) for state in states)

    def _copied(self, found: GroupMatch, sizes: Sequence[PageSizes], pages: range) -> list[State]:
        """Returns the state of each page, both halves in one piece; nothing if a page is gone."""
        states, outs = self._memory(pages, sizes)
        for match, half, out in zip(found.matches, sizes, outs, strict=True):
            if out and self._client.load(match, out, max(pages.start - min(half), 0), timeout=0) < len(out):
                return []
        return states

    def _memory(self, pages: range, halves: Sequence[PageSizes]) -> tuple[list[State], list[list[State]]]:
        """Returns memory for each page, and for each group the memory of the halves that are copied there."""
        empty = self._state.empty_part
        sizes = [[half.get(page, len(empty)) for half in halves] for page in pages]
        memory, end = self._state.buffer(sum(map(sum, sizes))), 0
        states: list[State] = []
        outs: list[list[State]] = [[] for _ in halves]
        for page, of_page in zip(pages, sizes, strict=True):
            states.append(memory[end : end + sum(of_page)])
            for half, out, nbytes in zip(halves, outs, of_page, strict=True):
                start, end = end, end + nbytes
                if page in half:
                    out.append(memory[start:end])
                else:
                    memory[start:end] = empty
        return states, outs


def _page_sizes(found: GroupMatch) -> list[PageSizes]:
    """Returns the bytes of each page of a hit, for each group; nothing for a miss, and if the memory is gone already.

    They are taken once: the matches of a session that ends during the load have none any more.
    """
    sizes = [match.page_sizes.tolist() for match in found.matches]
    if not found.tokens or [*map(len, sizes)] != [*map(len, found.matches)]:
        return []
    return [dict(enumerate(half, start)) for half, start in zip(sizes, found.start_pages, strict=True)]


def _batches(sizes: Sequence[PageSizes]) -> Iterator[range]:
    """Yields the pages of a hit, as many at once as fit into a CPU's cache."""
    step = max(1, _BATCH_BYTES // sum(max(half.values(), default=0) for half in sizes))
    pages = range(min(sizes[0]), max(sizes[0]) + 1)
    for first in range(0, len(pages), step):
        yield pages[first : first + step]
