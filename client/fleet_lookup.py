"""Asking which pages the fleet has: the request, and its result."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import Attachment
from pagetier.client.keys import Keys
from pagetier.client.pending_request import PendingRequest
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Answer, Locate, Located, Space

NOTHING: Final = Located(0, b"")
"""No page is in the fleet, as far as is known."""


class FleetPages(msgspec.Struct, frozen=True, eq=False):
    """Which pages of a request the fleet has.

    Attributes:
        sizes: The size of each page, 0 if the fleet does not have it.
        spaces: The namespace of each page, an index into `table`.
        table: The namespaces.
    """

    sizes: npt.NDArray[np.uint64]
    spaces: npt.NDArray[np.uint32]
    table: tuple[Space, ...]


class Location:
    """A request to locate pages in the fleet. Made by Client.locate(). Thread-safe.

    What it says is a hint: each page is verified when it is read. In a forked child it is ready, without pages.

    Attributes:
        keys: The keys that were asked for.
    """

    def __init__(self, pending: PendingRequest[Located], keys: Keys) -> None:
        self.keys = keys
        self._pending = pending

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once. Cheap to poll; the daemon answers within `remote.ask_timeout`."""
        return self._pending.ready

    def wait(self, timeout: float) -> int:
        """Returns how many pages, from the first on, the fleet has. May be called again.

        Waits at most `timeout` seconds; 0 without a response by then.
        """
        sizes = np.frombuffer(self._pending.wait(timeout).sizes, "<u8")
        absent = np.flatnonzero(sizes == 0)
        return int(absent[0]) if len(absent) else len(sizes)

    @property
    def page_sizes(self) -> npt.NDArray[np.uint64]:
        """The size of each page in bytes (u64), 0 if the fleet does not have it; empty while not ready."""
        return np.frombuffer(self._pending.wait(0.0).sizes, "<u8")

    @property
    def rate(self) -> float:
        """Bytes per second at which the daemon has read pages from the fleet; 0 if not known."""
        return self._pending.wait(0.0).rate

    def __repr__(self) -> str:
        state = f"{self.wait(0.0)} in the fleet" if self.ready else "requested"
        return f"<Location of {len(self.keys)} pages, {state}>"


def space_of(keys: Keys) -> Space:
    """Returns the namespace of keys, as messages have it."""
    return Space(keys.namespace.digest, keys.namespace.name, keys.namespace.page_tokens)


def pages_in_fleet(keys: Keys, located: Location) -> FleetPages | None:
    """Returns which of some keys the fleet has, of which only the last were asked for; None while that is not known.

    Raises:
        ValueError: The location is not of the last of these keys.
    """
    before = len(keys) - len(located.keys)
    if before < 0 or keys[before:].data != located.keys.data:
        raise ValueError("the location is not of the last of these keys")
    asked = located.page_sizes
    if not len(asked):
        return None
    sizes = np.concatenate((np.zeros(before, "<u8"), asked))
    return FleetPages(sizes, np.zeros(len(keys), "<u4"), (space_of(keys),))


def request_location(attachment: Attachment, keys: Keys, timeout: float) -> Location:
    """Returns a request to locate pages in the fleet, sent without waiting for the response.

    Nothing is sent while the fleet does not answer, or if there is none.

    Args:
        attachment: The attachment of this process.
        keys: The pages.
        timeout: Seconds for sending.
    """
    session = attachment.session
    asks = bool(keys) and session is not None and session.asks_fleet
    table = (space_of(keys),) if asks else ()
    pending = request_pages(attachment, keys.data if asks else b"", bytes(4 * len(keys)), table, timeout)
    return Location(pending, keys)


def request_pages(
    attachment: Attachment, keys: bytes, spaces: bytes, table: tuple[Space, ...], timeout: float
) -> PendingRequest[Located]:
    """Returns a request to locate pages, sent without waiting for the response. Without keys no request is sent.

    Args:
        attachment: The attachment of this process.
        keys: The keys, 32 bytes each.
        spaces: The namespace of each page, u32 indices into `table`.
        table: The namespaces.
        timeout: Seconds for sending.
    """
    linked = attachment.linked if keys else None

    def accept(answer: Answer) -> Located | None:
        sound = isinstance(answer, Located) and len(answer.sizes) // 8 == len(keys) // KEY_BYTES
        return answer if sound and isinstance(answer, Located) else NOTHING

    link = linked.link if linked else None
    pending = PendingRequest(
        attachment.requests, link, lambda number: Locate(number, keys, spaces, table), accept, lambda _: NOTHING
    )
    pending.send_and_leave(timeout)
    return pending
