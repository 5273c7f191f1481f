"""Reads from the marks of a stream which pages were promised at which time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from power_loss.write_stream import Event


class Told(msgspec.Struct, frozen=True):
    """The promises about pages, by their numbers.

    Attributes:
        begun: Pages whose store had begun.
        stored: Pages that were reported stored, and not dropped since.
        synced: The place in the stream of the last report that all of them are on the disk.
    """

    begun: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    synced: int = 0


class Promises:
    """The promises of a stream, at any place of it."""

    def __init__(self, events: Sequence[Event]) -> None:
        told = list(_told(events))
        self._places = [at for at, _ in told]
        self._told = [Told(), *(one for _, one in told)]

    def at(self, cut: int) -> Told:
        """Returns the promises just before an event."""
        return self._told[bisect_left(self._places, cut)]


def _told(events: Sequence[Event]) -> Iterator[tuple[int, Told]]:
    now = Told()
    for at, event in enumerate(events):
        word, *numbers = event.mark.split(" ") if event.mark else ("",)
        pages = frozenset(map(int, filter(None, numbers)))
        match word:
            case "storing":
                now = replace(now, begun=now.begun | pages)
            case "stored":
                now = replace(now, stored=now.stored | pages)
            case "dropping":
                now = replace(now, stored=now.stored - pages)
            case "shrinking":
                now = replace(now, stored=frozenset())
            case "synced":
                now = replace(now, synced=at)
            case _:
                continue
        yield at, now
