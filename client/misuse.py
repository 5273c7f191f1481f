"""Logs wrong use of the API once, where an exception could end an engine's forward pass."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final, NoReturn, Protocol

from pagetier.client.arguments import integer_of, seconds_of
from pagetier.client.keys import Namespace, require_keys
from pagetier.client.match import Match, MatchHandle
from pagetier.kernels.host.buffers import Access, HostBuffers, page_count, pages_of

log = logging.getLogger("pagetier.client")
_LONGEST_S: Final = 1e6  # the daemon is not asked to wait for ever


class Misuse(Enum):
    """A kind of wrong use: what happened, and what follows or what to do."""

    CLOSED = "match() of a client that is closed: every match is a miss"
    RELEASED = "load() of a match that is released: load its pages before release() or the end of its with block"
    NEGATIVE_TIMEOUT = (
        "a timeout below 0 counts as 0, which waits for nothing: pass seconds, or None for the client's own"
    )
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


class WaitingClient(Protocol):
    """The part of a Client that says how long its calls may wait."""

    timeout: float
    misuse: MisuseLog


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


def seconds_to_wait(client: WaitingClient, timeout: object) -> float:
    """Returns the seconds that a call with this `timeout` may wait, at least 0; None stands for the client's timeout.

    A negative number is often what is left of a caller's own time, so it is logged and raises nothing.

    Raises:
        TypeError: The timeout is not a number.
        ValueError: It is NaN.
    """
    seconds = client.timeout if timeout is None else seconds_of("timeout", timeout)
    if seconds < 0:
        client.misuse.report(Misuse.NEGATIVE_TIMEOUT)
    return min(max(0.0, seconds), _LONGEST_S)


def require_match(value: object, call: str) -> None:
    """Raises TypeError if a call is made without a match."""
    if not isinstance(value, Match):
        raise TypeError(f"{call} takes the Match that match() returns, not {type(value).__name__}")


def require_handle(value: object) -> None:
    """Raises TypeError if adopt() is called without the handle of a match."""
    if not isinstance(value, MatchHandle):
        raise TypeError(f"adopt() takes the MatchHandle that Match.to_handle() returns, not {type(value).__name__}")


def first_page(match: object, start_page: object) -> int:
    """Returns the first page of a load.

    Raises:
        TypeError: It is not an integer, or the load is made without a match.
        ValueError: It is negative.
    """
    require_match(match, "load()")
    number = integer_of("start_page", start_page)
    if number < 0:
        raise ValueError(f"start_page must be 0 or more, not {number}")
    return number


def tokens_to_skip(match: Match, skip_tokens: object, page_tokens: int, units: int) -> int:
    """Returns the tokens that a load skips of pages that are copied in this many units.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative, or more than a prompt of as many full pages has. A match of another process does not
            know its prompt. Or it ends inside a page whose units are not its tokens.
    """
    number = integer_of("skip_tokens", skip_tokens)
    if number < 0:
        raise ValueError(f"skip_tokens must be 0 or more, not {number}")
    if match.keys is not None and number >= (most := (match.asked + 1) * page_tokens):
        raise ValueError(
            f"skip_tokens is {number}, but the prompt that was matched has {match.asked} full pages of {page_tokens}"
            f" tokens, so fewer than {most} tokens"
        )
    if units != page_tokens and number % page_tokens:
        raise ValueError(f"skip_tokens is {number}, but opaque rows are copied in whole pages of {page_tokens} tokens")
    return number


def require_namespace(value: object) -> None:
    """Raises TypeError if flush() is called without a namespace."""
    if not isinstance(value, Namespace):
        raise TypeError(
            f"flush() takes a Namespace, not {type(value).__name__}: pass that of the keys, or use `pagetier flush`"
        )


def reject_keys(value: object, error: AttributeError) -> NoReturn:
    """Raises TypeError for an argument of match() that is not Keys, and AttributeError again for one that is."""
    try:
        require_keys(value, "match()")
    except TypeError as wrong:
        raise wrong from None
    raise error
