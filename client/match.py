"""Matches: pages that a lookup has found and pinned, and handles to pass them to another process."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Keys, require_keys
from pagetier.shm._core import Pins, miss
from pagetier.shm.page_rows import PAGE_ENTRIES, PAGE_SERIALS
from pagetier.shm.row_arrays import sizes_of


class MatchHandle(msgspec.Struct, frozen=True):
    """A match that is passed to another process of the same engine: 12 bytes a page. It pins nothing.

    The process that matched keeps its match until the other process has called adopt() or AsyncCopier.load().
    Pages that were evicted before that are a miss there. len() is the number of pages.

    Attributes:
        segments_id: The segments that the match belongs to; 0 if it was released.
        page_tokens: The number of tokens in a page.
        entries: u32, the entry of each page.
        serials: u64, the serial of each page.
    """

    segments_id: int
    page_tokens: int
    entries: bytes
    serials: bytes

    def __len__(self) -> int:
        return PAGE_SERIALS.count(self.serials)

    def first(self, count: int) -> MatchHandle:
        """Returns a handle of the first pages."""
        entries, serials = PAGE_ENTRIES.part(self.entries, 0, count), PAGE_SERIALS.part(self.serials, 0, count)
        return MatchHandle(self.segments_id, self.page_tokens, entries, serials)

    def __repr__(self) -> str:
        return f"<MatchHandle of {len(self)} pages>"


class Match(Pins):
    """The longest cached prefix of some keys. Its pages can be loaded until release() or the end of a `with` block.

    Made by Client.match(), again() and adopt(). len() is the number of pinned pages. Pickling a match gives a
    MatchHandle. A match that is dropped is released.

    A pinned page cannot be evicted or changed. If a stopping daemon releases its memory, pages that are not being
    copied by then are a miss. A client can pin a page 65,535 times at once; a further match ends before that page.

    Attributes:
        asked: The number of keys that were looked up.
        available_pages: The length of the prefix in pages if pages on disk, or being read from disk, count too; len()
            or more. Client.load() reads those after the first len() pages. In a match from another process it is len().
        from_disk: Pages that were on disk when the match was made and that Client.load() or again() has
            brought into memory since.
        pinned: Whether the pages are pinned.
        session: The session whose memory the pages are in; None for a miss without a session.
    """

    __slots__ = ()

    @property
    def keys(self) -> Keys | None:
        """The keys that were looked up; None in a match that another process handed over."""
        context = self.context
        return context if isinstance(context, Keys) else None

    @property
    def page_tokens(self) -> int:
        """The number of tokens in a page."""
        context = self.context
        return context.namespace.page_tokens if isinstance(context, Keys) else int(context)

    @property
    def tokens(self) -> int:
        """The number of tokens in the pinned pages."""
        return len(self) * self.page_tokens

    @property
    def available_tokens(self) -> int:
        """The number of tokens in the pages in memory and on disk, see `available_pages`."""
        return self.available_pages * self.page_tokens

    @property
    def page_sizes(self) -> npt.NDArray[np.uint64]:
        """The size of each pinned page in bytes (u64); empty after release()."""
        return sizes_of(self.sizes)

    def again(self) -> Match:
        """Returns a second match of the same keys for the same request, for example after a prefetch.

        It does not count as another lookup. Pages that reached memory since then count in the tier where this match
        found them, unless it is released. Release both matches. A match that another process handed over has no keys:
        the result is a miss. Never waits.
        """
        keys = self.keys
        if keys is None:
            return miss(Match, keys, self.asked)
        longer = rematched(self, keys)
        self.count_loaded(len(longer))
        return longer

    def to_handle(self) -> MatchHandle:
        """Returns a handle for another process of the same engine. The handle of a released match is empty."""
        session = self.session
        segments_id = session.segments_id if session is not None and self.pinned else 0
        entries, serials = (self.entries, self.serials) if segments_id else (b"", b"")
        return MatchHandle(segments_id, self.page_tokens, entries, serials)

    def __reduce__(self) -> tuple[type[MatchHandle], tuple[Any, ...]]:
        return MatchHandle, msgspec.structs.astuple(self.to_handle())

    def __repr__(self) -> str:
        if not self.pinned and len(self):
            return f"<Match {len(self)} of {self.asked} pages, released>"
        more = f", {self.available_pages - len(self)} more on disk" if self.available_pages > len(self) else ""
        return f"<Match {len(self)} of {self.asked} pages, {int(self.page_sizes.sum()) / 2**20:.1f} MiB{more}>"


def rematched(match: Match, keys: Keys) -> Match:
    """Returns a second match of the first keys of a match, without counting it; see Match.again()."""
    session = match.session
    if session is None or not session.usable:
        return miss(Match, keys, match.asked)
    return session.rematch(Match, keys, keys.data, match)


def require_match(value: object, call: str) -> None:
    """Raises TypeError if a call is made without a match."""
    if not isinstance(value, Match):
        raise TypeError(f"{call} takes the Match that match() returns, not {type(value).__name__}")


def require_handle(value: object) -> None:
    """Raises TypeError if adopt() is called without the handle of a match."""
    if not isinstance(value, MatchHandle):
        raise TypeError(f"adopt() takes the MatchHandle that Match.to_handle() returns, not {type(value).__name__}")


def reject_keys(value: object, error: AttributeError) -> NoReturn:
    """Raises TypeError for an argument of match() that is not Keys, and AttributeError again for one that is."""
    try:
        require_keys(value, "match()")
    except TypeError as wrong:
        raise wrong from None
    raise error
