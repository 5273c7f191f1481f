"""Reads from the marks of a stream which pages were promised at which time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from power_loss.write_stream import Event


class Promised(msgspec.Struct, frozen=True):
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
        promised = list(_promised(events))
        self._places = [at for at, _ in promised]
        self._promised = [Promised(), *(one for _, one in promised)]

    def at(self, cut: int) -> Promised:
        """Returns the promises just before an event."""
        return self._promised[bisect_left(self._places, cut)]


def _promised(events: Sequence[Event]) -> Iterator[tuple[int, Promised]]:
    now = Promised()
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
