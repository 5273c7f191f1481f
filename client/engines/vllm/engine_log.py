"""Writes to vLLM's log: the records of pagetier's own loggers, and what an engine caches."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

from pagetier.client.engines.attachment_log import describe_memory
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.reconnect import LinkEvent
from pagetier.shm._core import Session

log = logging.getLogger("vllm.pagetier")


class VllmHandler(logging.Handler):
    """Passes records of pagetier's own loggers to vLLM's log, which has a handler for its own loggers only."""

    def emit(self, record: logging.LogRecord) -> None:
        """Passes one record."""
        passed = copy.copy(record)
        passed.msg = f"pagetier: {record.msg}"
        log.handle(passed)


def route_logs() -> None:
    """Passes the records of pagetier's loggers to vLLM's log, unless the program has configured them itself."""
    ours = logging.getLogger("pagetier")
    if ours.handlers:
        return
    ours.addHandler(VllmHandler())
    ours.propagate = False
    if ours.level == logging.NOTSET:
        ours.setLevel(log.getEffectiveLevel())


def describe_cache(
    session: Session | None,
    event: LinkEvent,
    groups: Sequence[PagedGroup],
    page_bytes: Sequence[int],
    identity: ModelIdentity,
) -> str:
    """Returns what an engine caches, and where.

    Args:
        session: The mapped segments.
        event: The attachment.
        groups: The groups of the model.
        page_bytes: The size of a page of each group.
        identity: The identity of the model.
    """
    count = f"{len(groups)} group{'s' * (len(groups) > 1)}"
    tokens = "/".join(map(str, sorted({group.kind.page_tokens for group in groups})))
    sizes = "/".join(f"{nbytes / 1024:g}" for nbytes in sorted(set(page_bytes)))
    return (
        f"{describe_memory(session, event)}, {count}, pages of {tokens} tokens ({sizes} KiB),"
        f' namespace "{groups[0].namespace.name}", {identity.summary}'
    )
