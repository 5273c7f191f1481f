"""Asks which pages of all layer groups the fleet has, and chooses the longest hit that all tiers allow together."""

from __future__ import annotations

import math
from array import array
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import Attachment
from pagetier.client.daemon_requests import FleetPages, locate_pages
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import grain_of
from pagetier.client.keys import Keys, require_keys, space_of
from pagetier.client.pending_request import PendingRequest, PendingResult
from pagetier.shm._core import Session, located_pages, pages_to_find
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Located, Space
from pagetier.shm.row_arrays import flags_of, sizes_of

_MOST_PAGES: Final = 4096
"""The most pages of one question: the daemon answers within `remote.ask_timeout`, and more are rarely read."""
_MOST_PAGE_BYTES: Final = 1 << 48
"""A larger size is no page's, but a damaged answer of a store. The sizes of a question add up to less than 2^63."""


class LocatedHit(msgspec.Struct, frozen=True, eq=False):
    """A hit that needs pages of the fleet. Made by Location.longest_hit(), for Client.prefetch().

    Attributes:
        tokens: The length of the hit in tokens.
        fleet_bytes: The bytes that are read from the fleet for it.
        keys: The pages that the hit needs and that the match did not pin, 32 bytes each, in the order of their ends.
        fleet: Which of these pages the fleet has.
    """

    tokens: int
    fleet_bytes: int
    keys: bytes
    fleet: FleetPages


class _AskedGroup(msgspec.Struct, frozen=True, eq=False):
    """The pages of one group that are asked for, from page `first_page` of the prompt on.

    Attributes:
        keys: The keys of all pages of the prompt.
        first_page: The first page that is asked for. The match has found what a hit needs of the pages before it.
        numbers: The number of each asked page in the question.
    """

    keys: GroupKeys
    first_page: int
    numbers: npt.NDArray[np.intp]

    def sums_over_needed(self, values: npt.NDArray[Any], hits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns for each hit the sum of `values` over the asked pages of this group that it needs.

        Args:
            values: A value for each page of the question.
            hits: The lengths of the hits in tokens.
        """
        # The sum over a range of pages is the sum up to its end minus that up to its begin, for all hits in one step.
        up_to = np.concatenate(([0], np.cumsum(values[self.numbers], dtype=np.int64)))
        begins, ends = self._needed(hits)
        needed: npt.NDArray[np.int64] = up_to[ends] - up_to[begins]
        return needed

    def _needed(self, hits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the first asked page that each hit needs, and the end of its pages, as Group.pages() has them."""
        group = self.keys.group
        begins = np.maximum(hits - group.needs, 0) // group.page_tokens - self.first_page
        return np.maximum(begins, 0), hits // group.page_tokens - self.first_page


class _GroupQuestion(msgspec.Struct, frozen=True, eq=False):
    """The pages of all groups that a match did not find, each of them once.

    Attributes:
        pages: The number of each key in the question.
        spaces: The namespace of each page, an index into `table`.
        table: The namespaces.
        groups: The groups, those that need most pages first.
        ends: The length in tokens of the longest hit that is asked for.
    """

    pages: dict[bytes, int]
    spaces: array[int]
    table: tuple[Space, ...]
    groups: tuple[_AskedGroup, ...]
    ends: int

    @property
    def keys(self) -> bytes:
        return b"".join(self.pages)


class Location(PendingResult[Located]):
    """A request to locate pages of all groups in the fleet. Made by Client.locate(). Thread-safe.

    What it says is a hint: each page is verified when it is read. In a forked child it is ready, without pages.

    Attributes:
        match: The match whose missing pages were asked for. It may be released.
    """

    def __init__(
        self, pending: PendingRequest[Located], match: GroupMatch, question: _GroupQuestion, session: Session | None
    ) -> None:
        super().__init__(pending)
        self.match, self._question, self._session = match, question, session

    @property
    def rate(self) -> float:
        """Bytes per second at which the daemon has read pages from the fleet; 0 if not known."""
        return self._pending.wait(0.0).rate

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the fleet has any of the pages. May be called again."""
        return any(self._pending.wait(timeout).sizes)

    def longest_hit(self, most_bytes: float = math.inf) -> LocatedHit | None:
        """Returns the longest hit on which all groups agree with what memory, disk and fleet have. Never waits.

        Where the pages are on this host is looked up now, so that pages that came since the match count too.

        Args:
            most_bytes: The bytes that may be read from the fleet; a shorter hit is returned if it needs less.

        Returns:
            The hit; None if the fleet makes it no longer than `match.available_tokens`, or has not answered.
        """
        if self._session is None or not self.wait(0.0):
            return None
        answered = sizes_of(self._pending.wait(0.0).sizes)
        sizes = np.where(answered <= _MOST_PAGE_BYTES, answered, 0).astype(np.int64)
        on_host = flags_of(self._session.locate(self._question.keys)) != 0
        begins, grain = self.match.available_tokens, grain_of(asked.group for asked in self.match.groups)
        ends = np.arange(begins + grain, self._question.ends + 1, grain, dtype=np.int64)
        lacking, nbytes = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
        for group in self._question.groups:
            lacking += group.sums_over_needed(~on_host & (sizes == 0), ends)
            nbytes += group.sums_over_needed(np.where(on_host, 0, sizes), ends)
        possible = np.flatnonzero((lacking == 0) & (nbytes <= most_bytes))
        return self._hit(int(ends[possible[-1]]), int(nbytes[possible[-1]]), sizes) if len(possible) else None

    def _hit(self, tokens: int, fleet_bytes: int, sizes: npt.NDArray[np.int64]) -> LocatedHit:
        question, keys = self._question, self.match.missing(tokens)
        numbers = [question.pages.get(key, -1) for key in PAGE_KEYS.split(keys)]
        located = array("Q", [sizes[number] if number >= 0 else 0 for number in numbers])
        spaces = array("I", [question.spaces[number] if number >= 0 else 0 for number in numbers])
        pages = located_pages(keys, located, spaces)
        return LocatedHit(tokens, fleet_bytes, keys, FleetPages(pages, question.table))

    def __repr__(self) -> str:
        state = "answered" if self.ready else "requested"
        return f"<Location of {len(self._question.pages)} pages, {state}>"


def require_group_match(value: object, call: str) -> None:
    """Raises TypeError if a call is made without a match of groups."""
    if not isinstance(value, GroupMatch):
        raise TypeError(f"{call} takes the GroupMatch that find_groups() returns, not {type(value).__name__}")


def request_location(attachment: Attachment, match: GroupMatch, timeout: float) -> Location:
    """Returns a request to locate the pages after a match in the fleet, sent without waiting for the response.

    Nothing is sent while the fleet does not answer, if there is none, or if the match lacks nothing.

    Args:
        attachment: The attachment of this process.
        match: The match.
        timeout: Seconds for sending.
    """
    session = attachment.session
    if session is None or not session.asks_fleet:
        nothing = locate_pages(attachment, b"", (), timeout)
        return Location(nothing, match, _GroupQuestion({}, array("I"), (), (), 0), session)
    question = _question_of(match)
    pages = pages_to_find(question.keys, question.spaces)
    return Location(locate_pages(attachment, pages, question.table, timeout), match, question, session)


def pages_to_read(pages: Keys | GroupMatch | LocatedHit) -> tuple[bytes, FleetPages | None]:
    """Returns the keys of the pages that a prefetch reads, and which of them the fleet has, if that was asked.

    Raises:
        TypeError: They are none of these.
    """
    if isinstance(pages, LocatedHit):
        return pages.keys, pages.fleet
    if isinstance(pages, GroupMatch):
        return pages.missing(), None
    require_keys(pages, "prefetch()")
    return pages.data, None


def _question_of(match: GroupMatch) -> _GroupQuestion:
    """Returns the pages after those that the match has found: it needs no others, since no group looks further back.

    Groups that need most come first: without the first page the daemon takes the question as answered with "absent".
    """
    ends = _end_of_question(match)
    pages: dict[bytes, int] = {}
    spaces = array("I")
    table: dict[Space, int] = {}
    groups = []
    for asked in sorted(match.groups, key=lambda one: -one.group.needs):
        first = match.available_tokens // asked.group.page_tokens
        keys = asked.keys[first : ends // asked.group.page_tokens]
        numbers = np.fromiter((pages.setdefault(key, len(pages)) for key in keys), np.intp, len(keys))
        groups.append(_AskedGroup(asked, first, numbers))
        spaces.extend([table.setdefault(space_of(keys), len(table))] * (len(pages) - len(spaces)))
    return _GroupQuestion(pages, spaces, tuple(table), tuple(groups), ends)


def _end_of_question(match: GroupMatch) -> int:
    """Returns the length of the longest hit that is asked for, so that the question has at most _MOST_PAGES pages."""
    grain = grain_of(asked.group for asked in match.groups)
    pages = sum(grain // asked.group.page_tokens for asked in match.groups)
    return min(match.asked, match.available_tokens + max(1, _MOST_PAGES // pages) * grain)
