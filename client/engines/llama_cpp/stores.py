"""Stores the pages of a sequence that were decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import numpy as np

from pagetier.client.client import Client
from pagetier.client.engines.llama_cpp.paged_state import Kind, PagedState
from pagetier.client.engines.llama_cpp.sequence_tokens import SequenceTokens
from pagetier.client.keys import Keys
from pagetier.client.reservation import Reservation
from pagetier.client.store_result import Outcome


class _Grant(msgspec.Struct, eq=False):
    """Memory for pages of one group.

    Attributes:
        half: The half of the state that the group stores: 0 or 1.
        first: The page of the prompt that is the first of the reservation.
        nbytes: The size of each page.
        reservation: The memory.
        written: The pages of the reservation that were written.
    """

    half: int
    first: int
    nbytes: int
    reservation: Reservation
    written: list[int]

    @property
    def pages(self) -> Iterator[int]:
        return (self.first + int(page) for page in self.reservation.open)


class PageStores:
    """The stores of one context.

    Args:
        client: The client.
        state: The state of the context's sequences.
    """

    def __init__(self, client: Client, state: PagedState) -> None:
        self._client, self._state = client, state

    def store(self, tokens: SequenceTokens, seq: int) -> int:
        """Stores what is new of a sequence, and returns the number of stored pages of all groups."""
        length = self._state.context.length(seq)
        if length < tokens.decoded:  # the host removed positions, perhaps from the middle
            tokens.groups = ()
        tokens.decoded = length
        if not tokens.groups or self._client.session is None:
            return 0
        pages = [self._readable(tokens, seq, half) for half in range(len(tokens.groups))]
        with ExitStack() as stack:
            grants = [self._grant(stack, tokens, seq, half, new) for half, new in enumerate(pages) if new]
            self._write(grants, seq)
            stored = sum(self._publish(grant) for grant in grants)
        if pages[0]:
            tokens.stored = pages[0].stop
        return stored

    def _readable(self, tokens: SequenceTokens, seq: int, half: int) -> range:
        """Returns the new pages of a group whose state the sequence still has."""
        context, page_tokens = self._state.context, self._state.page_tokens
        length = context.length(seq)
        pages = range(tokens.stored, min(length, len(tokens)) // page_tokens)
        if self._state.kind is Kind.RECURRENT or (half and self._state.kind is Kind.HYBRID):
            return pages[-1:] if length == pages.stop * page_tokens else pages[:0]
        if half:  # a window: cells that left it are missing up to the first position
            return range(max(pages.start, -(-context.first(seq) // page_tokens)), pages.stop)
        return pages if self._state.kind is not Kind.PLAIN or context.first(seq) == 0 else pages[:0]

    def _grant(self, stack: ExitStack, tokens: SequenceTokens, seq: int, half: int, pages: range) -> _Grant:
        """Returns memory for those of the pages, and of those before them, that are not stored."""
        keys, nbytes = tokens.groups[half].keys, self._state.page_size(seq, pages[-1])[half]
        first = 0 if self._chained(half) else pages.start
        asked: Keys = keys[first : pages.stop]
        reservation = stack.enter_context(self._client.reserve(asked, nbytes))
        return _Grant(half, first, nbytes, reservation, [])

    def _chained(self, half: int) -> bool:
        """Returns whether all pages before those of a store can still be read."""
        return not half and self._state.kind is not Kind.RECURRENT

    def _write(self, grants: list[_Grant], seq: int) -> None:
        for page in sorted({page for grant in grants for page in grant.pages}):
            halves = self._state.read(seq, page)
            for grant in grants:
                number = page - grant.first
                if number in grant.reservation.open and len(halves[grant.half]) == grant.nbytes:
                    grant.reservation.write(number, halves[grant.half])
                    grant.written.append(number)

    def _publish(self, grant: _Grant) -> int:
        """Publishes what was written, and returns how many pages are stored."""
        outcomes = grant.reservation.publish(np.array(grant.written, np.intp)).outcomes
        return sum(outcomes[number] is Outcome.STORED for number in grant.written)
