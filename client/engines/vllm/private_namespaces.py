"""Namespaces that no other engine can name: what is in them is of no use to anybody once this engine forgets them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pagetier.client.client import Client
from pagetier.client.keys import Namespace

_PATIENCE_S: Final = 5.0  # for the answer to a flush, before the next one is sent


class PrivateNamespaces:
    """Flushes the private namespaces of before a reset. Waits for nobody itself: one thread asks the daemon.

    A namespace is private by construction: its salt is a random text of this engine's. The index has an adapter's pages
    in the namespace without it, so they are flushed, too. Pages that a worker still writes at the time of a reset are
    flushed with the next one. What is left then, or where there is no daemon, the daemon drops when its table of
    namespaces is full.

    Args:
        client: this process's.
        namespaces: the private ones among those that the engine begins with.
    """

    def __init__(self, client: Client, namespaces: Iterable[Namespace]) -> None:
        self._client = client
        self._current = set(namespaces)
        self._before: set[Namespace] = set()
        self._thread = ThreadPoolExecutor(1, "pagetier-flush")

    def renew(self, namespaces: Iterable[Namespace]) -> None:
        """Flushes all of them, as the engine goes on with these private ones."""
        useless, self._current = self._current, set(namespaces)
        for namespace in useless | self._before:
            self._thread.submit(self._client.flush, namespace, _PATIENCE_S)
        self._before = useless

    def close(self) -> None:
        """Sends no further requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)
