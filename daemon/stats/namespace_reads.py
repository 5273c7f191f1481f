"""Reads the pages of namespaces from disk in parts, and says why some were not read.

The command `pagetier pages prefetch` and the HTTP interface send the requests.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

from pagetier.daemon.stats.page_lookup import PagesOnDisk
from pagetier.shm._core import Observer
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Fetched, FetchOutcome
from pagetier.shm.units import counted

AT_ONCE: Final = 1 << 12
"""Pages of a request. The daemon begins their reads in one turn, in about 15 ms, while others wait."""
ABSENT: Final = "the other pages are in no tier, or behind one that is not"
NO_ROOM: Final = "memory has no room for the other pages: what is in it is in use, pinned or protected by a quota"
_GONE: Final = "no longer on disk, or unreadable"


class NamespaceReads:
    """The requests that read pages, which need not follow one another, and what they have read.

    Attributes:
        read: Pages that were read.
        gone: Pages that are in no tier any more, or could not be read.
        failed: The outcome of the first of the other pages; IN_MEMORY while there are none.
    """

    def __init__(self, observer: Observer, found: PagesOnDisk) -> None:
        self._observer, self._found = observer, found
        self._keys, self._asked, self._why = found.keys, b"", ""
        self.read = self.gone = 0
        self.failed = FetchOutcome.IN_MEMORY

    @property
    def unread(self) -> int:
        """Pages that were not read, of those that are not gone."""
        return PAGE_KEYS.count(self._keys)

    def next_keys(self) -> bytes:
        """Returns the keys of the next request; none if no more pages can be read now."""
        self._asked = b""
        while self._keys and not self._asked and not self._why:
            part = PAGE_KEYS.part(self._keys, 0, AT_ONCE)
            # The daemon reads no page behind an absent one, so those that have left the disk by now are left out.
            self._asked = b"".join(compress(PAGE_KEYS.split(part), self._observer.locate(part)))
            self.gone += PAGE_KEYS.count(part) - PAGE_KEYS.count(self._asked)
            self._keys = PAGE_KEYS.part(self._keys, AT_ONCE, PAGE_KEYS.count(self._keys))
        return self._asked

    def take(self, answer: Fetched) -> None:
        """Takes the answer to the last request."""
        first = len(answer.outcomes) - len(answer.outcomes.lstrip(bytes([FetchOutcome.IN_MEMORY])))
        failed = answer.outcomes[first : first + 1]
        self._why = _why_stopped(answer, failed)
        # An absent page left the disk just now. Those without room find it when the first ones have been read.
        absent = 0 if self._why else failed.count(FetchOutcome.ABSENT)
        self.read += first
        self.gone += absent
        self.failed = FetchOutcome(failed[0]) if self._why else FetchOutcome.IN_MEMORY
        self._keys = PAGE_KEYS.part(self._asked, first + absent, AT_ONCE) + self._keys

    def reason(self, unlisted: str) -> str:
        """Returns why pages are not in memory, "" if all are.

        Args:
            unlisted: Why the pages on disk are not listed, "" if they are.
        """
        reasons = {self._found.why_left_out: self._found.left_out, unlisted or _GONE: self.gone, self._why: self.unread}
        given = {why: pages for why, pages in reasons.items() if pages}
        if not given:
            return unlisted
        each = ", ".join(f"{pages:,} ({why})" for why, pages in given.items())
        return f"{counted(sum(given.values()), 'page')} not read: {each if len(given) > 1 else next(iter(given))}"


def _why_stopped(answer: Fetched, failed: bytes) -> str:
    """Returns why no more pages can be read now, of which `failed` is the outcome of the first; "" if they can."""
    if not failed:
        return ""
    got_none = answer.outcomes[0] == FetchOutcome.NO_ROOM or FetchOutcome.IN_MEMORY not in answer.outcomes
    if FetchOutcome.PENDING not in failed and not got_none:
        return ""
    return answer.reason or ("" if FetchOutcome.ABSENT in failed else NO_ROOM)
