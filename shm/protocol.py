"""The messages on the control socket: a little-endian u32 with the length of a message, then the message.

A message is in msgpack or a frame (message_codec.py).
A client begins with Attach (or Observe). The daemon answers with Welcome, which carries the segments' descriptors, or
with Refusal. After that the client may send requests at any time; each is answered once, with its number.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec

from pagetier.shm._core import FORMAT
from pagetier.shm.errors import PagetierError
from pagetier.shm.page_messages import (
    Fetch,
    Fetched,
    FetchLocated,
    FetchOutcome,
    Locate,
    Located,
    Message,
    Search,
    Space,
)

__all__ = ["Fetch", "FetchLocated", "FetchOutcome", "Fetched", "Locate", "Located", "Space"]  # of other modules

PROTOCOL: Final = 6
BUILD: Final = f"pagetier protocol {PROTOCOL} format {FORMAT}"
# Maximum bytes of any message, of an engine's request (400,000 pages of one prompt), and of a greeting.
MESSAGE_LIMIT: Final = 64 << 20
REQUEST_LIMIT: Final = 16 << 20
HINT_KEYS: Final = 1 << 16  # maximum pages of one HintPages
FORGET_KEYS: Final = 64  # maximum pages of one Forget, which are overwritten between two other requests
FORGET: Final = "forget"  # in Welcome.extras: the daemon understands Forget
HINTS, PREFETCH = "hints", "prefetch"  # in Welcome.extras: HintPages, and Fetch of observers who may attach
UNDERSTOOD: Final = (HINTS, PREFETCH, FORGET)
POPULATING: Final = "its arena is being populated: try again in a moment"  # the reason of a Refusal that passes
DISK: Final = "disk"  # in Welcome.extras: the daemon has a disk tier, which it may still be opening
GREETING_LIMIT: Final = 2 << 20


class ProtocolError(PagetierError):
    """The peer sent data that is not a message of this protocol."""


class Attach(Message, frozen=True):
    """An engine's request for a slot.

    Attributes:
        token: The same when the same session attaches again.
        serials: Serials (u64) of the granted pages that the session still knows; all others granted to it are released.
        mapped: The ID of the segments that the session has mapped and keeps if it gets the same slot; 0: none.
    """

    build: str
    token: int
    name: str
    serials: bytes = b""
    mapped: int = 0


class Observe(Message, frozen=True):
    """An observer's request for read-only descriptors of index and lock words."""

    build: str


class Welcome(Message, frozen=True):
    """Accepts Attach or Observe. Sent with the descriptors of index, lock words and, for an engine, the arena.

    Attributes:
        extras: What this daemon understands and has beyond the first builds of the protocol, which send none.
    """

    slot: int
    segments_id: int
    populated: bool
    extras: tuple[str, ...] = ()


class Refusal(Message, frozen=True):
    """Rejects Attach or Observe, permanently or for now."""

    reason: str


class Prompt(NamedTuple):
    """The place of a prompt among the pages of a request. A client of an earlier build does not say `depth`.

    `begin` is the index of its first page among the pages, `before` the key of the page before that one (b"": none, or
    not known), `depth` the number of its first page in the prompt, counted from 0 (-1: not known).
    """

    begin: int
    before: bytes = b""
    depth: int = -1


class Reserve(msgspec.Struct, frozen=True):
    """Requests memory for one part of each page of a chain, in order from the head. A frame, see message_codec.py.

    Attributes:
        part: The index of the part, below `parts`.
        pages: Rows of PAGE_REQUESTS (page_rows.py): the key of each page, and the bytes of the whole page.
        division: How a page is divided into parts (u32); parts of different divisions never form one page.
        prompts: The prompts among the pages, ascending from page 0; empty if each page is useful on its own. None, as
            from clients of earlier builds: not known.
        hint: What is known of the session: a HintKind, 0 if nothing is.
        hint_ttl: Seconds after which the hint expires.
    """

    number: int
    space: Space
    part: int
    parts: int
    pages: bytes
    division: int = 0
    prompts: tuple[Prompt, ...] | None = None
    hint: int = 0
    hint_ttl: float = 0.0


class Reserved(msgspec.Struct, frozen=True):
    """Answers Reserve, as a frame. pages: Rows of PAGE_ANSWERS: the outcome, the entry and the serial of each page."""

    number: int
    pages: bytes
    reason: str = ""


class HintPages(Message, frozen=True):
    """Says what is known of pages. Only to a daemon with HINTS among its extras: others close the connection.

    Attributes:
        number: 0 requests no response.
        keys: KEY_BYTES bytes for each page, at most HINT_KEYS pages; without keys all pages of the namespace.
        hint: A HintKind.
        ttl: Seconds after which the hint expires; infinite for pages that are kept until UNKEEP.
        namespace: Only pages of the namespaces with this label, model or digest (in hex); None: of any.
    """

    number: int
    keys: bytes
    hint: int
    ttl: float
    namespace: str | None = None


class PagesHinted(Message, frozen=True):
    """Answers HintPages: pages named, pages to which it applies now, all bytes kept. trouble: why it has no effect."""

    number: int
    pages: int
    applied: int
    kept_bytes: int = 0
    trouble: str = ""


class Flush(Message, frozen=True):
    """Requests that the pages of namespaces are dropped.

    Attributes:
        namespace: The beginning of the namespaces' labels or digests (in hex); None: all namespaces.
        tier: "memory" or "disk": only that tier; None: both.
    """

    number: int
    namespace: str | None
    tier: str | None = None


class Forget(Message, frozen=True):
    """Requests that pages leave all tiers. keys: KEY_BYTES per page. Only to a daemon with FORGET among its extras."""

    number: int
    keys: bytes


class Flushed(Message, frozen=True):
    """Answers Flush and Forget: pages dropped, pages kept in use, matching labels, why others may still be on disk."""

    number: int
    dropped: int
    kept: int
    namespaces: list[str]
    trouble: str = ""


class Save(Message, frozen=True):
    """Requests that unwritten pages are written and synced; repeated, as the daemon writes while requests arrive."""

    number: int


class Saved(Message, frozen=True):
    """Answers Save at once with the pages and bytes that are still unwritten.

    Attributes:
        synced: Whether nothing is unwritten and all data is on the device.
        trouble: Why writing makes no progress, "" if it does.
    """

    number: int
    pages: int
    bytes: int
    synced: bool
    trouble: str = ""


class Resize(Message, frozen=True):
    """An administrator's request for other sizes: `settings` maps names ("disk.size") to new values, as texts."""

    number: int
    settings: dict[str, str]


class Resized(Message, frozen=True):
    """Answers Resize with the settings that have another value now. trouble: why none was changed, or ""."""

    number: int
    changed: list[str] = []  # noqa: RUF012  a Struct copies it
    trouble: str = ""


class Reclaim(Message, frozen=True):
    """An administrator's request to free an adopted slot whose process no kernel object watches."""

    number: int
    slot: int


class Reclaimed(Message, frozen=True):
    """Answers Reclaim. trouble: why the slot was not freed, or ""."""

    number: int
    trouble: str = ""


class Describe(Message, frozen=True):
    """Requests the configuration that is in force. Every peer that may observe may send it."""

    number: int


class Description(Message, frozen=True):
    """Answers Describe with a triple for each setting: its name, its value as a configuration has it, its source."""

    number: int
    settings: list[tuple[str, str, str]]


class Check(Message, frozen=True):
    """Requests a complete check of the index."""

    number: int


class Findings(Message, frozen=True):
    """Answers Check with one sentence for each problem."""

    number: int
    findings: list[str]


class Detach(Message, frozen=True):
    """An engine's message that it accesses no segment any more. It may follow Attach at once. number 0: no response."""

    number: int = 0


class Detached(Message, frozen=True):
    """Answers Detach when the slot is free."""

    number: int


PackedRequest: TypeAlias = (
    Attach | Observe | Search | HintPages | Flush | Forget | Save | Resize | Reclaim | Describe | Check | Detach
)
"""The requests in msgpack."""
PackedAnswer: TypeAlias = (
    Welcome
    | Refusal
    | Fetched
    | Located
    | PagesHinted
    | Flushed
    | Saved
    | Resized
    | Reclaimed
    | Description
    | Findings
    | Detached
)
"""The responses in msgpack."""
Request: TypeAlias = PackedRequest | Reserve
Answer: TypeAlias = PackedAnswer | Reserved
