"""An engine without the client library, whose pages follow from their numbers."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from eventually import PATIENCE_S, eventually
from numbered_pages import key_of, keys_of, read_page, write_page
from pagetier.shm._core import Pins, ReserveOutcome, Session, answer_columns, page_requests
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Attach, Fetch, Fetched, FetchOutcome, Reserve, Reserved, Space
from running_daemon import RunningDaemon

PAGE = 60_000
SPACE = Space(hashlib.sha256(b"space").digest(), "test/model", 16)


def content_of(number: int) -> bytes:
    """Returns the content of a page."""
    return np.random.default_rng(number).bytes(PAGE)


class Engine:
    """An attached process that compares each page that it finds with the page's only content."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._numbers = itertools.count(1)
        self._token = secrets.randbits(63)
        self._path = daemon.socket
        self._mapped = 0
        self.attach()

    def attach(self) -> None:
        """Attaches to this daemon or its successor."""
        assert eventually(self._attached)

    def _attached(self) -> bool:
        try:
            self.link = Link(self._path, PATIENCE_S)
        except LinkError:
            return False
        try:
            greeting = self.link.greet(Attach(BUILD, self._token, "engine", mapped=self._mapped), PATIENCE_S)
        except LinkError:
            self.link.close()
            return False
        index, locks, arena = greeting.descriptors
        self.session = Session(index, locks, arena, greeting.welcome.slot)
        for descriptor in greeting.descriptors:
            os.close(descriptor)
        self._mapped = greeting.welcome.segments_id
        return True

    def store(self, numbers: Iterable[int]) -> bytes:
        """Stores a chain of pages and returns the outcomes."""
        pages = list(numbers)
        sizes = struct.pack(f"<{len(pages)}Q", *[PAGE] * len(pages))
        answer = self.link.ask(
            Reserve(next(self._numbers), SPACE, 0, 1, page_requests(keys_of(pages), sizes)), PATIENCE_S
        )
        assert isinstance(answer, Reserved)
        outcomes, entries, serials = answer_columns(answer.pages)
        for at, number in enumerate(pages):
            if outcomes[at] == ReserveOutcome.GRANTED:
                entry = entries[4 * at : 4 * at + 4]
                write_page(self.session, entry, content_of(number))
                assert self.session.publish(entry, serials[8 * at : 8 * at + 8], 0) == b"\1"
        return outcomes

    def ask_fetch(self, numbers: Iterable[int], timeout: float = PATIENCE_S) -> None:
        """Sends a fetch request without waiting for the response."""
        self.link.send(Fetch(next(self._numbers), keys_of(numbers), timeout), PATIENCE_S)

    def answer(self) -> Fetched:
        """Returns the next response to a fetch request."""
        answers = eventually(lambda: self.link.read(1.0), 2 * PATIENCE_S)
        assert answers and isinstance(answers[0], Fetched), "a fetch is not answered"
        return answers[0]

    def fetch(self, numbers: Iterable[int], timeout: float = PATIENCE_S) -> list[int]:
        """Fetches pages from disk into memory and returns the outcomes."""
        self.ask_fetch(numbers, timeout)
        return list(self.answer().outcomes)

    def where(self, number: int) -> str:
        """Returns "memory" (after comparing the content), "disk" or "nowhere"."""
        with self.session.match(Pins, None, key_of(number)) as pins:
            if not len(pins):
                return "disk" if pins.available_pages else "nowhere"
            assert read_page(self.session, pins, PAGE) == content_of(number), f"page {number} has other bytes"
            return "memory"

    def places(self, numbers: Iterable[int]) -> Counter[str]:
        """Returns the number of pages in each place."""
        return Counter(map(self.where, numbers))

    def available_pages(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Returns how many pages of a chain are in memory, and how many in memory or on disk."""
        with self.session.match(Pins, None, keys_of(numbers)) as pins:
            return len(pins), pins.available_pages

    def goes_on(self, first: int) -> None:
        """Asserts that stores and matches in memory work as usual."""
        for start in range(first, first + 60, 6):
            assert ReserveOutcome.REFUSED_FULL not in self.store(range(start, start + 6))
            assert self.places(range(start, start + 6)) == {"memory": 6}
        assert self.fetch([first + 54, 99_999], 2) == [FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT]

    def close(self) -> None:
        self.session.retire()
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
