"""Hints: what an engine knows of a session, and which pages are to stay."""

from __future__ import annotations

import math
from typing import Final, Self

import msgspec
from msgspec.structs import force_setattr

from pagetier.client.arguments import seconds_of
from pagetier.shm._core import HintKind

_TTL_S: Final = 300.0
_OVER_TTL_S: Final = 3600.0
_WITHIN: Final = ((20.0, HintKind.WITHIN_20), (60.0, HintKind.WITHIN_60), (300.0, HintKind.WITHIN_300))


class Hint(msgspec.Struct, frozen=True):
    """What is known of the session of pages: it is over, or returns within a time; or pages that are to be kept.

    A hint moves pages in the order of eviction, and never rejects a store. It counts as far as hints of its kind were
    right before, and until the next store that uses the page. Made by the class methods.

    Attributes:
        kind: What is known.
        ttl: Seconds after which the hint expires. The daemon rounds them up to a power of two, at most 9 hours, except
            for pages that are kept.

    Raises:
        TypeError: The time to live is not a number.
        ValueError: The time to live is not positive, or it is infinite for a hint other than keep().
    """

    kind: HintKind = HintKind.NONE
    ttl: float = _TTL_S

    def __post_init__(self) -> None:
        force_setattr(self, "ttl", seconds_of("the time to live of a hint", self.ttl))
        if not self.ttl > 0 or (math.isinf(self.ttl) and self.kind is not HintKind.KEEP):
            raise ValueError(f"the time to live of a hint is a positive number of seconds, not {self.ttl}")

    @classmethod
    def over(cls, ttl: float = _OVER_TTL_S) -> Self:
        """Returns the hint that a session does not return."""
        return cls(HintKind.OVER, ttl)

    @classmethod
    def returns_within(cls, seconds: float, ttl: float | None = None) -> Self:
        """Returns the hint that a session returns within some seconds, counted from the hint.

        The daemon distinguishes 20, 60 and 300 seconds, and more. If the session does not return in time, its pages
        lose their worth, as far as other sessions with such a hint did not return either.

        Args:
            seconds: The session returns at the latest after this time.
            ttl: Seconds after which the hint expires; None: twice the time, and 5 minutes or more.

        Raises:
            ValueError: A time is not positive, or it is infinite.
        """
        seconds = seconds_of("the time of Hint.returns_within()", seconds)
        if not 0 < seconds < math.inf:
            raise ValueError(f"a session returns within a positive number of seconds, not {seconds}")
        kind = next((kind for most, kind in _WITHIN if seconds <= most), HintKind.LATER)
        return cls(kind, max(_TTL_S, 2 * seconds) if ttl is None else ttl)

    @classmethod
    def keep(cls, ttl: float = _TTL_S) -> Self:
        """Returns the hint that pages are evicted last, within `evict.keep_share`; math.inf: until unkeep()."""
        return cls(HintKind.KEEP, ttl)

    @classmethod
    def unkeep(cls) -> Self:
        """Returns the hint that ends keep(), for pages that this user keeps."""
        return cls(HintKind.UNKEEP)


NO_HINT: Final = Hint()
"""Says nothing; for pages that have a hint: it does not count any more."""


def require_hint(hint: object) -> None:
    """Raises TypeError unless `hint` is a Hint."""
    if not isinstance(hint, Hint):
        raise TypeError(f"a hint is made by Hint.over(), Hint.returns_within() or Hint.keep(), not {hint!r}")
