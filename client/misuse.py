"""Logs wrong use of the API once, where an exception could end an engine's forward pass."""

from __future__ import annotations

import logging
from enum import Enum
from typing import NoReturn

from pagetier.client.keys import Namespace, require_keys
from pagetier.client.match import Match
from pagetier.kernels.host.buffers import Access, HostBuffers, page_count, pages_of

log = logging.getLogger("pagetier.client")


class Misuse(Enum):
    """A kind of wrong use: what happened, and what follows or what to do."""

    CLOSED = "match() of a client that is closed: every match is a miss"
    RELEASED = "load() of a match that is released: load its pages before release() or the end of its with block"
    OTHER_SIZE = "load() of pages into buffers of another size than the pages: nothing is loaded"


class MisuseLog:
    """The kinds of wrong use that one client has logged. Each kind is logged once."""

    def __init__(self) -> None:
        self._logged: set[Misuse] = set()

    def report(self, kind: Misuse) -> None:
        """Logs a warning, unless one of this kind was logged before."""
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("%s; further cases are not logged", kind.value)


def why_nothing_loaded(match: Match, out: HostBuffers, start_page: int) -> Misuse | None:
    """Returns the mistake for which buffers cannot take the first page of a match; None if they can."""
    if len(match) and not match.pinned:
        return Misuse.RELEASED
    sizes = match.page_sizes[start_page:]
    return Misuse.OTHER_SIZE if len(sizes) and not _fits(out, int(sizes[0])) else None


def _fits(out: HostBuffers, page_bytes: int) -> bool:
    """Returns whether the first of some buffers, or one buffer for all pages, has room for exactly whole pages."""
    try:
        count = page_count(out, page_bytes)
    except ValueError:
        return False
    return count > 0 and int(pages_of(out, count, Access.WRITE).sizes[0]) == page_bytes


def require_timeout(value: object) -> None:
    """Raises TypeError if a client's timeout is not a number of seconds, ValueError if it is negative or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"Client() takes a number of seconds as timeout, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"Client() takes a timeout of 0 seconds or more, not {value}")


def require_match(value: object, start_page: int) -> None:
    """Raises TypeError if load() is called without a match, ValueError if its first page is negative."""
    if not isinstance(value, Match):
        raise TypeError(f"load() takes the Match that match() returns, not {type(value).__name__}")
    if start_page < 0:
        raise ValueError(f"start_page must be 0 or more, not {start_page}")


def require_namespace(value: object) -> None:
    """Raises TypeError if flush() is called without a namespace."""
    if not isinstance(value, Namespace):
        raise TypeError(
            f"flush() takes a Namespace, not {type(value).__name__}: pass that of the keys, or use `pagetier flush`"
        )


def require_same(namespace: Namespace, own: Namespace) -> None:
    """Raises ValueError for keys of another cache's namespace: its pages may have the same shape and mean another."""
    if namespace != own:
        raise ValueError(f"keys of {namespace.name} were given to the cache of {own.name}")


def reject_keys(value: object, error: AttributeError) -> NoReturn:
    """Raises TypeError for an argument of match() that is not Keys, and AttributeError again for one that is."""
    try:
        require_keys(value, "match()")
    except TypeError as wrong:
        raise wrong from None
    raise error
