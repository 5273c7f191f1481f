"""Asking which pages the fleet has: the request, and its result."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.client.attachment import Attachment
from pagetier.client.pending_request import PendingRequest
from pagetier.shm.page_rows import PAGE_SIZES, PAGES_TO_FIND
from pagetier.shm.protocol import Answer, Locate, Located, Space

NOTHING: Final = Located(0, b"")
"""No page is in the fleet, as far as is known."""


class FleetPages(msgspec.Struct, frozen=True, eq=False):
    """Which pages of a request the fleet has.

    Attributes:
        pages: The pages, rows of LOCATED_PAGES; the size is 0 if the fleet does not have one.
        table: The namespaces.
    """

    pages: bytes
    table: tuple[Space, ...]


def request_pages(
    attachment: Attachment, pages: bytes, table: tuple[Space, ...], timeout: float
) -> PendingRequest[Located]:
    """Returns a request to locate pages, sent without waiting for the response. Without pages no request is sent.

    Args:
        attachment: The attachment of this process.
        pages: Rows of PAGES_TO_FIND.
        table: The namespaces.
        timeout: Seconds for sending.
    """
    linked = attachment.linked if pages else None
    count = PAGES_TO_FIND.count(pages)

    def accept(answer: Answer) -> Located | None:
        return answer if isinstance(answer, Located) and PAGE_SIZES.count(answer.sizes) == count else NOTHING

    link = linked.link if linked else None
    pending = PendingRequest(
        attachment.requests, link, lambda number: Locate(number, pages, table), accept, lambda _: NOTHING
    )
    pending.send_and_leave(timeout)
    return pending
