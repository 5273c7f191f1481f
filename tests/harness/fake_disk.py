"""A simulated daemon with a disk, which reads pages into memory when the test decides."""

from __future__ import annotations

import queue
import threading
from array import array

import numpy as np

from anonymous_segments import DAY_NS, attach
from eventually import PATIENCE_S
from fake_daemon import FakeDaemon, Peer
from numbered_pages import write_page
from pagetier.client import Client, Keys
from pagetier.shm._core import Pins, ReserveOutcome, WriteResult, WriteRule
from pagetier.shm.page_rows import PAGES_TO_READ, PAGES_TO_WRITE
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome, Request, Reserve

_FETCH_OUTCOME_OF = {
    ReserveOutcome.GRANTED: FetchOutcome.IN_MEMORY,
    ReserveOutcome.PRESENT: FetchOutcome.IN_MEMORY,
    ReserveOutcome.PENDING: FetchOutcome.PENDING,
    ReserveOutcome.REFUSED_FULL: FetchOutcome.NO_ROOM,
    ReserveOutcome.ABSENT: FetchOutcome.ABSENT,
}
_FETCH_OUTCOMES = bytes.maketrans(bytes(_FETCH_OUTCOME_OF), bytes(_FETCH_OUTCOME_OF.values()))


class FakeDiskDaemon(FakeDaemon):
    """Grants reservations at once, unless it `hangs`.

    Fetch requests are put into `fetches`, where the test answers them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetches: queue.Queue[tuple[Peer, Fetch]] = queue.Queue()
        self.hangs = False
        self._one_by_one = threading.Lock()
        self._disk: dict[bytes, bytes] = {}
        self._slot = attach(self.owner, 1)
        self._worker = self.memory.session(self._slot)
        self.owner.disk_open(1000, WriteRule.THROUGH)

    def client(self, timeout: float = PATIENCE_S) -> Client:
        """Returns an attached client."""
        client = Client(self.socket, timeout=timeout)
        assert client.wait_attached(PATIENCE_S)
        return client

    def next_fetch(self) -> tuple[Peer, Fetch]:
        """Returns the next fetch request and its connection."""
        return self.fetches.get(timeout=PATIENCE_S)

    def write_out(self) -> int:
        """Writes all pages in memory to disk and evicts those that are not pinned.

        Returns:
            The number of evicted pages.
        """
        with self._one_by_one:
            self.owner.settle()
            rows = self.owner.start_writes(1000, 1000)
            chosen = list(PAGES_TO_WRITE.read(rows))
            entries, serials = array("I", [page.entry for page in chosen]), array("Q", [page.serial for page in chosen])
            with self._worker.repin(Pins, None, entries, serials) as pins:
                pages = [bytearray(page.size) for page in chosen]
                sizes = array("Q", [page.size for page in chosen])
                assert self._worker.copy_out(pins, 0, _addresses(pages), sizes, 1) == len(pages)
            self._disk |= {page.key: bytes(content) for page, content in zip(chosen, pages, strict=True)}
            self.owner.end_writes(rows, bytes([WriteResult.DONE]) * len(pages))
            return self.owner.evict(self.memory.geometry.frames, 1000)

    def bring_in(self, keys: Keys | bytes) -> bytes:
        """Reads pages into memory and returns the outcomes of the response."""
        data = keys if isinstance(keys, bytes) else keys.data
        with self._one_by_one:
            rows = self.owner.fetch(array("I", [self._slot]), DAY_NS, data, array("Q", [2**64 - 1]))
            pages = list(PAGES_TO_READ.read(rows))
            for page in pages:
                if page.outcome == ReserveOutcome.GRANTED:
                    write_page(self._worker, array("I", [page.entry]).tobytes(), self._disk[page.key])
                    assert self._worker.publish(array("I", [page.entry]), array("Q", [page.serial]), 0) == b"\1"
            self.owner.settle()
        return bytes(page.outcome for page in pages).translate(_FETCH_OUTCOMES)

    def fulfil(self, peer: Peer, request: Fetch) -> None:
        """Reads the requested pages into memory and answers the request."""
        peer.send(Fetched(request.number, self.bring_in(request.keys)))

    def received(self, peer: Peer, request: Request) -> None:
        """Queues a fetch for the test, and grants a reservation."""
        if isinstance(request, Fetch):
            self.fetches.put((peer, request))
        elif isinstance(request, Reserve) and not self.hangs:
            with self._one_by_one:
                peer.send(self.answer_to(peer, request))


def _addresses(pages: list[bytearray]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([np.frombuffer(page, np.uint8).ctypes.data for page in pages], np.uint64)
