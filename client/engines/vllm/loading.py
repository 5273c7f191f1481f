"""The load of one request by a worker."""

from __future__ import annotations

import math

import msgspec

from pagetier.client.async_copy import LoadHandle


class Loading(msgspec.Struct, frozen=True, eq=False):
    """A load.

    Attributes:
        loads: The load of each group; none if the calling thread has copied all of them.
        blocks: The blocks that are written.
        short: Whether pages are missing.
        span: From when and until when the calling thread has copied, by the clock.
    """

    loads: tuple[LoadHandle, ...]
    blocks: frozenset[int]
    short: bool
    span: tuple[float, float] = (math.inf, -math.inf)

    @property
    def ended(self) -> bool:
        """Whether nothing is written any more."""
        return all(load.ended for load in self.loads)

    @property
    def whole(self) -> bool:
        """Whether all pages were loaded."""
        return not self.short and all(_is_whole(load) for load in self.loads)

    @property
    def seconds(self) -> float:
        """How long the copies took; not positive if that is not known."""
        spans = [self.span, *(load.span for load in self.loads)]
        return max(ends for _, ends in spans) - min(begins for begins, _ in spans)


def _is_whole(load: LoadHandle) -> bool:
    return not load.failed and load.ready(load.layers - 1)
