"""A store that goes on by itself, as the engine sees it."""

from __future__ import annotations

from pagetier.client.async_copy.store_job import StoringJob
from pagetier.client.reservation import Outcome, StoreResult


class Store:
    """Pages on their way out of the engine's cache. Made by Copier.store; from any thread.

    Who drops it stops nothing. Until it is ready the blocks keep their content, unless it is cancelled.
    """

    def __init__(self, job: StoringJob) -> None:
        self._job = job

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once, with what is final."""
        return self._job.decided or self._job.foreign

    def wait(self, deadline: float) -> StoreResult:
        """What became of the pages, after at most `deadline` seconds. Those that are not finished by then are pending.

        May be called again. In a forked child everything is refused.
        """
        if self._job.foreign:
            refused = bytes([Outcome.REFUSED]) * len(self._job.result)
            return StoreResult(refused, "it was begun in another process")
        self._job.wait_until(lambda: self._job.decided, deadline)
        return self._job.result

    @property
    def ended(self) -> bool:
        """Whether nothing of it reads the cache any more: also after cancel(). Never, if the device failed."""
        return self._job.ended

    def wait_ended(self, deadline: float) -> bool:
        """Waits for that, at most `deadline` seconds."""
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, deadline)

    def cancel(self) -> None:
        """Gives up all pages that are not readable when this returns: their blocks may have other content from then on.

        Their memory stays until it has ended. Does nothing once it is ready.
        """
        self._job.cancel()

    def __repr__(self) -> str:
        return f"<Store {'ready' if self.ready else 'on its way'}, {self._job.result!r}>"
