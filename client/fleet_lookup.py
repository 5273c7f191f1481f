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


def space_of(keys: Keys) -> Space:
    """Returns the namespace of keys, as messages have it."""
    return Space(keys.namespace.digest, keys.namespace.name, keys.namespace.page_tokens)


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
