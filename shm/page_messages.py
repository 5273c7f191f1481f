"""The messages by which a client finds and reads pages that are not in memory, and what all messages have in common."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """A message, encoded as an array: the lower-case name of the class, then its fields.

    A client chooses the `number` of its request; the response carries the same number.
    """


class Space(msgspec.Struct, frozen=True, array_like=True):
    """A namespace of the index: `digest` has KEY_BYTES, `group` is a GroupKind, `window` is in tokens (0: none)."""

    digest: bytes
    name: str
    page_tokens: int
    group: int = 0
    window: int = 0


class Locate(Message, frozen=True):
    """Asks which pages the fleet has.

    Attributes:
        pages: Rows of PAGES_TO_FIND (page_rows.py), whose namespaces are in `table`.
    """

    number: int
    pages: bytes
    table: tuple[Space, ...]


class Located(Message, frozen=True):
    """Answers Locate, at most `remote.ask_timeout` later.

    Attributes:
        sizes: The bytes of each page (u64), 0 if the fleet does not have it, or has not answered.
        rate: Bytes per second at which pages were read from the fleet; 0 if not known.
    """

    number: int
    sizes: bytes
    rate: float = 0.0


class Fetch(Message, frozen=True):
    """Requests pages of a chain from disk, in order from the head.

    Attributes:
        keys: KEY_BYTES per page.
        timeout: Seconds.
    """

    number: int
    keys: bytes
    timeout: float


class FetchLocated(Message, frozen=True):
    """Requests pages of a chain as Fetch does, from disk and from the fleet.

    Attributes:
        pages: Rows of LOCATED_PAGES, with their sizes from Located, whose namespaces are in `table`.
        timeout: Seconds.
    """

    number: int
    pages: bytes
    timeout: float
    table: tuple[Space, ...]


class FetchOutcome(IntEnum):
    """What became of a page of a fetch. PENDING: it is still being read; NO_ROOM: there is no memory for it."""

    IN_MEMORY = 0
    PENDING = 1
    ABSENT = 2
    NO_ROOM = 3


class Fetched(Message, frozen=True):
    """Answers a fetch with a FetchOutcome (u8) per page, when none is being read any more or at the timeout."""

    number: int
    outcomes: bytes
    reason: str = ""


Search: TypeAlias = Fetch | FetchLocated | Locate
"""A request for pages that are not in memory."""
