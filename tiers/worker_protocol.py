"""The protocol between the daemon and a tier's worker, over a socket pair, framed like the control socket's messages.

The daemon begins with Serve, which carries the segments' descriptors. The worker answers with Opened (or with
OpenFailed, and ends), then any number of InventoryPart, then of HistoryPart, then Complete. It answers each Read by its
number from Opened on, and each Write and Sync from Complete on.
For a fleet: ServeFleet, then FleetOpened and Complete; the commands are Write, Read, Find and GetState.
The first message of each side has its WORKER_BUILD ("" from earlier versions): another build is refused.

Rows are those of `shm/page_rows.py`; arrays are little-endian: keys of 32 bytes, entries and spaces u32, serials and
sizes u64. A stamp is in nanoseconds of the realtime clock; a history (HISTORY_BYTES) is what is known of a page's uses.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, TypeAlias

import msgspec

from pagetier.shm._core import FORMAT
from pagetier.shm.protocol import ProtocolError, Space
from pagetier.tiers.base import FleetState, TierState
from pagetier.tiers.capacity import Compress, StoreName

# The protocol's number is raised with each change of a message or of its rows.
WORKER_BUILD: Final = f"protocol 2 format {FORMAT}"


class _WorkerMessage(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """A message, encoded as an array: the lower-case name of the class, then its fields."""


class Trust(IntEnum):
    """How far a worker may trust the folder's content: earlier workers may have crashed on it or failed to sync it."""

    AS_LEFT = 0
    PROVEN = 1
    NOTHING = 2


class Serve(_WorkerMessage, frozen=True):
    """Asks the worker to open the tier.

    Attributes:
        slot: The worker's slot in the index.
        folder, cap: The tier's folder, and the limit of its files in bytes.
        environments: The number of environments.
        populated: Whether all memory of the arena is allocated, or about to be.
        store, compress: Where the bytes of the frames lie, and whether pages are compressed.
        trust: How far the folder's content may be trusted.
        discards: Whether pages that only other settings read may be discarded: the daemon was started with --fresh.
    """

    slot: int
    folder: str
    cap: int
    environments: int
    populated: bool = False
    store: StoreName = "lmdb"
    trust: Trust = Trust.AS_LEFT
    compress: Compress = "off"
    discards: bool = False
    build: str = ""


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker reaches a fleet.

    Attributes:
        url: The store: s3://, mooncake://, file:/// or python://.
        prefix: The first part of the names of all objects. Another prefix is another fleet.
        key_file: A file with the fleet key of 32 bytes; "" if pages are not encrypted.
        trusted: Whether Mooncake may be used without a fleet key.
        timeout_s: How long one call of the store may take, in seconds.
        buffers: The limit of the bytes of bounce buffers.
        compress: Whether pages are compressed where that is faster than the store.
    """

    url: str
    prefix: str = "pagetier"
    key_file: str = ""
    trusted: bool = False
    timeout_s: float = 2.0
    buffers: int = 256 << 20
    compress: Literal["auto", "off"] = "auto"


class ServeFleet(_WorkerMessage, frozen=True):
    """Asks the worker to open a fleet; in place of Serve. The attributes have the meaning of Serve's."""

    slot: int
    options: FleetOptions
    populated: bool = False
    build: str = ""


class Write(_WorkerMessage, frozen=True):
    """Requests to drop pages, then to write pages.

    Attributes:
        number: The number of the command.
        drops: The keys of the pages to drop.
        pages: The pages to write, rows of PAGES_TO_WRITE.
        spaces: The namespaces of these pages, by their numbers in the rows.
    """

    number: int
    drops: bytes
    pages: bytes = b""
    spaces: dict[int, Space] = {}


class Read(_WorkerMessage, frozen=True):
    """Requests to read pages into the frames that were granted to the worker, and to publish them.

    Attributes:
        number: The number of the command.
        pages: Rows of PAGES_TO_READ.
        spaces: The namespaces of these pages, by their numbers in the rows; only a fleet needs them.
    """

    number: int
    pages: bytes
    spaces: dict[int, Space] = {}


class Find(_WorkerMessage, frozen=True):
    """Asks which pages a fleet has, rows of PAGES_TO_FIND; answered with Found."""

    number: int
    pages: bytes
    table: tuple[Space, ...]


class Sync(_WorkerMessage, frozen=True):
    """Requests to make durable what was written."""

    number: int


class GetState(_WorkerMessage, frozen=True):
    """Requests the tier's state; answered with StateReport or FleetReport."""


class SaveLookups(_WorkerMessage, frozen=True):
    """Requests to keep what is known of lookups until the next worker opens the tier; Leave follows."""

    data: bytes


class Leave(_WorkerMessage, frozen=True):
    """Asks the worker to sync, close the tier and exit."""


class Opened(_WorkerMessage, frozen=True):
    """Reports that the tier is open. `capacity`: in frames, or in slots; `pages`: of records, damaged or not."""

    capacity: int
    state: TierState
    pages: int = 0
    build: str = ""


class FleetOpened(_WorkerMessage, frozen=True):
    """Reports that the fleet's store can be asked; Complete follows."""

    state: FleetState
    build: str = ""


class OpenFailed(_WorkerMessage, frozen=True):
    """Reports why the tier cannot be used, and how far the next worker may trust it; this worker exits."""

    reason: str
    trust: Trust = Trust.AS_LEFT


class SavedLookups(_WorkerMessage, frozen=True):
    """Reports what an earlier worker was asked to keep; sent once, between Opened and Complete."""

    data: bytes


class InventoryPart(_WorkerMessage, frozen=True):
    """Reports pages in the tier, rows of STORED_PAGES in the order of use: first the newest ones, then the oldest.

    `space` is a position in the tables of all parts so far, newer namespaces first; `older`: pages used before these.
    """

    pages: bytes
    table: tuple[Space, ...] = ()
    older: int = 0


class HistoryPart(_WorkerMessage, frozen=True):
    """Reports what is known of the uses of pages that were reported: the same rows, the first of each prompt first."""

    pages: bytes


class Complete(_WorkerMessage, frozen=True):
    """Reports that all pages in the tier have been reported."""


class Stored(IntEnum):
    """The result of one page of a Write.

    GONE: it had left memory; NO_ROOM: pages must be dropped first, or it is TOO_LARGE for the fleet; PRESENT: the fleet
    had it already; SKIPPED: it was not tried after another page of the same write had failed.
    """

    FAILED = 0
    DONE = 1
    GONE = 2
    NO_ROOM = 3
    PRESENT = 4
    SKIPPED = 5


class Wrote(_WorkerMessage, frozen=True):
    """Answers Write: a Stored (u8) a page, and the slots that it takes (u32; 0: as many as its bytes fill) or none.

    `reason`: why the first failed page was not stored, or "". `disk_bytes`: passed to the file system or the fleet.
    """

    number: int
    stored: bytes
    reason: str
    disk_bytes: int
    slots: bytes = b""


class HasRead(_WorkerMessage, frozen=True):
    """Reports the end of some pages of a Read, from page `first` on. The last report ends the Read.

    `read` has a u8 a page, 1 if it is in memory. `damaged` has keys that are no longer in the tier. For the other pages
    the tier did not answer.
    """

    number: int
    first: int
    read: bytes
    damaged: bytes
    reason: str


class Found(_WorkerMessage, frozen=True):
    """Answers Find. `sizes` has a u64 a page, 0 if it is absent; all are 0 if there is a `reason`: no answer came."""

    number: int
    sizes: bytes
    reason: str


class Synced(_WorkerMessage, frozen=True):
    """Answers Sync. `reason` says why it failed, "" if it did not."""

    number: int
    reason: str


class StateReport(_WorkerMessage, frozen=True):
    """Answers GetState. The worker also sends it when something changed that matters to an administrator."""

    state: TierState


class FleetReport(_WorkerMessage, frozen=True):
    """Answers GetState for a fleet. The worker also sends it when an administrator should know of a change."""

    state: FleetState


Command: TypeAlias = Serve | ServeFleet | Write | Read | Find | Sync | GetState | SaveLookups | Leave
OpeningReport: TypeAlias = Opened | FleetOpened | OpenFailed | SavedLookups | InventoryPart | HistoryPart | Complete
Report: TypeAlias = OpeningReport | Wrote | HasRead | Found | Synced | StateReport | FleetReport

_commands: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_reports: Final[msgspec.msgpack.Decoder[Report]] = msgspec.msgpack.Decoder(Report)


def other_version(worker: str) -> str:
    """Returns why a daemon of another build and a worker of this one refuse each other."""
    return f"its worker is of another version ({worker or 'unknown'}): restart pagetierd, and a service of the worker"


def decode_command(body: bytes) -> Command:
    """Decodes a message for the worker. Raises ProtocolError for anything else."""
    try:
        return _commands.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message for a worker: {error}") from error


def decode_report(body: bytes) -> Report:
    """Decodes a message for the daemon. Raises ProtocolError for anything else."""
    try:
        return _reports.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message for the daemon: {error}") from error
