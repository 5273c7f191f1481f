"""Flushes namespaces that no other engine can name: their pages are useless once this engine has a new salt."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pagetier.client.client import Client
from pagetier.client.keys import Namespace

_FLUSH_TIMEOUT_S: Final = 5.0  # for the response to a flush, before the next one is sent


class PrivateNamespaces:
    """Flushes the private namespaces that were in use before a reset. One thread sends the requests; no method blocks.

    A namespace is private if its salt is a random text of this engine. The index records an adapter's pages in the
    namespace without the adapter, so they are flushed, too. Pages that a worker still writes at the time of a reset are
    flushed at the next reset. The daemon drops what is left, or what was stored while it was unreachable, when its
    table of namespaces is full.

    Args:
        client: This process's client.
        namespaces: The private ones among the engine's first namespaces.
    """

    def __init__(self, client: Client, namespaces: Iterable[Namespace]) -> None:
        self._client = client
        self._current = set(namespaces)
        self._before: set[Namespace] = set()
        self._thread = ThreadPoolExecutor(1, "pagetier-flush")

    def renew(self, namespaces: Iterable[Namespace]) -> None:
        """Flushes the previous private namespaces and records the new ones."""
        useless, self._current = self._current, set(namespaces)
        for namespace in useless | self._before:
            self._thread.submit(self._client.flush, namespace, _FLUSH_TIMEOUT_S)
        self._before = useless

    def close(self) -> None:
        """Sends no further requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)
