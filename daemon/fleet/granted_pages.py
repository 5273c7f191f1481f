"""The pages that a reservation granted to be written."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pagetier.daemon.common.namespaces import printable
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.page_rows import PAGE_ANSWERS, PAGE_REQUESTS
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
    """Yields the pages that were granted, in their order."""
    space = msgspec.structs.replace(asked.space, name=printable(asked.space.name))
    for page, granted in zip(PAGE_REQUESTS.read(asked.pages), PAGE_ANSWERS.read(answer.pages), strict=True):
        if granted.outcome == ReserveOutcome.GRANTED:
            yield Page(granted.entry, granted.serial, page.key, page.size, space)
