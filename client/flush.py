"""Asking the daemon to drop the pages of a namespace."""

from __future__ import annotations

from pagetier.client.attachment import Attachment
from pagetier.client.keys import Namespace
from pagetier.client.pending_request import PendingRequest
from pagetier.shm.clock import Deadline
from pagetier.shm.protocol import Answer, Flush, Flushed


def flush(attachment: Attachment, namespace: Namespace, deadline: Deadline) -> bool:
    """Drops a namespace's pages. Waits for an attachment in progress, and then for the response.

    Returns:
        Whether the daemon has confirmed before the deadline that no page is left.
    """
    attachment.wait_linked(deadline.left)
    pending = _flush_request(attachment, namespace)
    try:
        pending.send(deadline.left)
        answer = pending.wait(deadline.left)
        pending.leave()
    except BaseException:  # an exception of a signal handler
        pending.leave()
        raise
    return answer is not None and not answer.kept


def _flush_request(attachment: Attachment, namespace: Namespace) -> PendingRequest[Flushed | None]:
    """Returns a request to drop a namespace's pages, which is not sent yet.

    Its result is the response, or None. The daemon waits for the disk before it answers, which may take seconds: a
    missing response does not count as a late daemon.
    """
    linked, digest = attachment.linked, namespace.digest.hex()

    def accept(answer: Answer) -> Flushed | None:
        return answer if isinstance(answer, Flushed) else None

    link = linked.link if linked else None
    return PendingRequest(attachment.requests, link, lambda number: Flush(number, digest), accept, lambda _: None)
