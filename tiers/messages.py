"""What goes between the daemon and a tier's worker, over a socket pair; framed like the control socket's messages.

The daemon begins with Serve, which carries the segments' descriptors. The worker answers Opened (or Fails, and ends),
then Holds again and again, then Complete. From then on each Write, Read and Sync is answered once, by its number.
Arrays are little-endian: keys of 32 bytes, entries and spaces u32, serials, sizes and stamps u64, a stamp being
nanoseconds of the realtime clock.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from ..shm.protocol import ProtocolError, Space
from .base import TierState


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """In the message an array: the lower-case name of the class, then its fields."""


class Trust(IntEnum):
    """What a worker may believe of what lies in the folder: workers may have died of it, or not have synced it."""

    AS_LEFT = 0
    PROVEN = 1
    NOTHING = 2


class Serve(_Message, frozen=True):
    """Open the tier. slot: of the worker in the index; folder: where the tier is; cap: bytes that it may take.

    populated: whether all memory of the arena is there, or about to be.
    """

    slot: int
    folder: str
    cap: int
    environments: int
    populated: bool = False
    trust: Trust = Trust.AS_LEFT


class Write(_Message, frozen=True):
    """Drop pages, then write pages. spaces: an index into `table` each."""

    number: int
    drops: bytes
    entries: bytes = b""
    serials: bytes = b""
    keys: bytes = b""
    sizes: bytes = b""
    stamps: bytes = b""
    spaces: bytes = b""
    table: tuple[Space, ...] = ()


class Read(_Message, frozen=True):
    """Read pages into the frames that were granted to the worker, and publish them."""

    number: int
    entries: bytes
    serials: bytes
    keys: bytes
    sizes: bytes


class Sync(_Message, frozen=True):
    """Bring to the device what was written."""

    number: int


class Tell(_Message, frozen=True):
    """Say how you are: answered with Tells."""


class Leave(_Message, frozen=True):
    """Sync, close the tier and end."""


class Opened(_Message, frozen=True):
    """The tier is open. room: frames that it holds."""

    room: int
    state: TierState


class Fails(_Message, frozen=True):
    """The tier can not be used; the worker ends. reason: one sentence for an administrator.

    trust: what the next worker may believe.
    """

    reason: str
    trust: Trust = Trust.AS_LEFT


class Holds(_Message, frozen=True):
    """Some of the pages that the tier holds. spaces: an index into `table` each."""

    keys: bytes
    sizes: bytes
    stamps: bytes
    spaces: bytes
    table: tuple[Space, ...]


class Complete(_Message, frozen=True):
    """The worker has said all that the tier holds."""


class Stored(IntEnum):
    """What became of a page of a Write. GONE: it had left memory; NO_ROOM: something must be dropped first."""

    FAILED = 0
    DONE = 1
    GONE = 2
    NO_ROOM = 3


class Wrote(_Message, frozen=True):
    """Answers Write. stored: a u8 a page, a Stored.

    reason: why the first that is not is not, "" if all are. disk_bytes: handed to the file system.
    """

    number: int
    stored: bytes
    reason: str
    disk_bytes: int


class HasRead(_Message, frozen=True):
    """Some pages of a Read have come to an end: `pages` of them from page `first` on. The last one ends the Read.

    read: a u8 a page, 1 if it is in memory. damaged: keys of pages that the tier does not have any more.
    """

    number: int
    first: int
    read: bytes
    damaged: bytes
    reason: str


class Synced(_Message, frozen=True):
    """Answers Sync. reason: why it failed, "" if it did not."""

    number: int
    reason: str


class Tells(_Message, frozen=True):
    """Answers Tell; comes by itself, too, where something has changed that people want to know."""

    state: TierState


Order: TypeAlias = Serve | Write | Read | Sync | Tell | Leave
Report: TypeAlias = Opened | Fails | Holds | Complete | Wrote | HasRead | Synced | Tells

_orders: Final[msgspec.msgpack.Decoder[Order]] = msgspec.msgpack.Decoder(Order)
_reports: Final[msgspec.msgpack.Decoder[Report]] = msgspec.msgpack.Decoder(Report)


def read_order(body: bytes) -> Order:
    """For the worker. Raises ProtocolError if it is none."""
    try:
        return _orders.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"no order: {error}") from error


def read_report(body: bytes) -> Report:
    """For the daemon. Raises ProtocolError if it is none."""
    try:
        return _reports.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"no report: {error}") from error
