"""Room that was asked for, and is on its way."""

from __future__ import annotations

from pagetier.client.part import Part
from pagetier.client.reservation import Answered, Reservation
from pagetier.client.rpc import Attachment, Owed, Requests
from pagetier.shm.protocol import Answer, Reserved


class Promise(Owed[Answered]):
    """Room that was asked for. Collect it with wait(), or cancel(); who drops it cancels.

    Made by Client.reserve_soon. From any thread; in a forked child it is refused.
    """

    def __init__(self, requests: Requests, attachment: Attachment | None, part: Part, pages: int) -> None:
        super().__init__(requests, attachment, pages)
        self.part = part
        self._session = attachment.session if attachment else None
        self._held = attachment.held if attachment else set()

    def wait(self, deadline: float) -> Reservation:
        """The reservation, once; after `deadline` seconds without an answer every page of it is refused."""
        if self._requests.foreign:
            return self._collect(0.0)
        self._requests.wait(self, deadline)
        reservation = self._collect(deadline)
        self._requests.tell()
        return reservation

    def cancel(self) -> None:
        """Gives up what was or will be granted. Does nothing after wait()."""
        self._collect(0.0).abandon()

    def give_up(self, waited: float) -> None:
        """cancel(), and where there is no answer the daemon is not asked again until it gives one.

        waited: seconds that it was given to answer, more than 0.
        """
        self._collect(waited).abandon()
        if not self._requests.foreign:
            self._requests.tell()

    def _collect(self, waited: float) -> Reservation:
        return Reservation(self._session, self._held, self._answered(waited), self.part)

    def _answered(self, waited: float) -> Answered:
        if self._requests.foreign:
            return Answered.refused(self.pages, "it was asked for in another process")
        answer = self._requests.collect(self, waited)
        return answer or Answered.refused(self.pages, "the daemon did not answer in time")

    def _hopeless(self) -> bool:
        """A daemon that is slow to read from disk is none that hangs: room is asked for all the same."""
        return self._requests.owes_at_once

    def _take(self, answer: Answer) -> bool:
        if not isinstance(answer, Reserved):
            return False
        self._answer = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        self._held.update(self._answer.granted_serials)
        if self._collected:
            self.cancel()
        return True

    def _fail(self, reason: str) -> None:
        self._answer = Answered.refused(self.pages, reason)

    def __del__(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = "collected" if self._collected else "ready" if self.ready else "asked"
        return f"<Promise of {self.pages} pages, {state}>"
