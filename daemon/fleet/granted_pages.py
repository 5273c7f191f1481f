"""The pages that a reservation granted to be written."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from pagetier.daemon.common.namespaces import printable
from pagetier.shm._core import KEY_BYTES, ReserveOutcome
from pagetier.shm.protocol import Reserve, Reserved, Space


class Page(msgspec.Struct, frozen=True):
    """A page that was granted to a writer.

    Attributes:
        tries: The writes for which it was not complete.
        failures: The writes that failed.
        why: Why the last of these failed, "" if none did.
    """

    entry: int
    serial: int
    key: bytes
    size: int
    space: Space
    tries: int = 0
    failures: int = 0
    why: str = ""


def granted_pages(asked: Reserve, answer: Reserved) -> Iterator[Page]:
    """Yields the pages that were granted to the writer of part 0, in their order: ranks do not count twice."""
    if asked.part:
        return
    space = msgspec.structs.replace(asked.space, name=printable(asked.space.name))
    sizes, entries, serials = array("Q", asked.sizes), array("I", answer.entries), array("Q", answer.serials)
    for at, outcome in enumerate(answer.outcomes):
        if outcome == ReserveOutcome.GRANTED:
            key = asked.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)]
            yield Page(entries[at], serials[at], key, sizes[at], space)
