"""Pages on disk are asked for beside the scheduler: who sends to a daemon that hangs waits until it takes requests."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from pagetier.client.client import Client
from pagetier.client.futures import Prefetch
from pagetier.client.group_match import GroupMatch


class Asked:
    """Pages that are asked for, and then on their way."""

    def __init__(self, sent: Future[Prefetch]) -> None:
        self._sent = sent

    @property
    def ready(self) -> bool:
        """Whether nothing more will come of it. Costs nothing to ask."""
        return self._sent.done() and (self._sent.cancelled() or self._sent.result().ready)


class Asker:
    """One thread that asks for all. Waits for nobody itself."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = ThreadPoolExecutor(1, "pagetier-ask")

    def ask(self, match: GroupMatch, timeout: float) -> Asked:
        """For what `match` reaches beyond what is pinned; it may be released meanwhile. timeout: the disk's, s."""
        return Asked(self._thread.submit(self._client.prefetch_groups, match, timeout))

    def close(self) -> None:
        """Nothing more is asked for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
