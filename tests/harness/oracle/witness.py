"""A client that stores and matches pages with verifiable content, and records all results in its journal."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import numpy as np

from oracle.journal import Journal, Reported
from oracle.page_contents import words, wrong
from pagetier.client import Client, Keys, Match, Outcome, StoreResult
from pagetier.client.adapters import Part, Reservation
from pagetier.client.paged_blocks import WHOLE

_REPORTED_AS: Final = {
    Outcome.STORED: Reported.STORED,
    Outcome.PRESENT: Reported.PRESENT,
    Outcome.PENDING: Reported.PENDING,
    Outcome.REFUSED: Reported.REFUSED,
}


class Verified(msgspec.Struct, frozen=True):
    """The result of a match.

    Attributes:
        away: There are no segments yet, so that the result proves nothing.
        hits: Pages pinned, counted from the head.
        reach: Pages in memory and on disk.
        loaded: Pages whose content was right.
    """

    hits: int = 0
    available_pages: int = 0
    loaded: int = 0
    away: bool = False


class PromptPage(msgspec.Struct, frozen=True):
    """A page whose changes are announced: its index in the prompt, and its key."""

    at: int
    key: bytes


class Witness:
    """A recording client. All pages have `page_bytes` bytes, a multiple of 8 for each part."""

    def __init__(self, client: Client, journal: Journal, seed: int, page_bytes: int) -> None:
        self.client = client
        self.journal = journal
        self.seed = seed
        self.page_bytes = page_bytes

    def store(self, keys: Keys, part: Part = WHOLE, timeout: float | None = None) -> StoreResult:
        """Stores a chain, or this writer's part of it."""
        since = time.monotonic_ns()
        self.journal.write(Reported.STORING, keys.data, since, part=part.index, parts=part.count)
        with self.client.reserve(keys, self.page_bytes, part, timeout) as reservation:
            self.fill(reservation, keys, part)
            result = reservation.publish()
        self.note(result, keys, since, part, np.asarray(reservation._serials))
        return result

    def fill(self, reservation: Reservation, keys: Keys, part: Part = WHOLE) -> None:
        """Writes the part of each granted page."""
        share = self.page_bytes // part.count
        for page in reservation.granted:
            whole = words(keys[int(page)], self.seed, self.page_bytes).view(np.uint8)
            offset = part.index * share
            reservation.write(int(page), whole[offset : offset + share], offset)

    def note(
        self, result: StoreResult, keys: Keys, since: int, part: Part = WHOLE, serials: np.ndarray | None = None
    ) -> None:
        """Records the result of a store."""
        outcomes = result.outcomes
        for outcome, kind in _REPORTED_AS.items():
            which = [page for page, code in enumerate(outcomes) if code is outcome]
            packed = serials[which].tobytes() if serials is not None and outcome is Outcome.STORED else b""
            chosen = [keys[page] for page in which]
            note = result.reason if outcome is Outcome.REFUSED else ""
            self.journal.write(kind, chosen, since, part=part.index, parts=part.count, serials=packed, note=note)

    def verify(self, keys: Keys, timeout: float = 0.0) -> Verified:
        """Matches a chain, loads the pages found, and compares every byte. `timeout`: seconds to wait for the disk."""
        session = self.client.session
        if session is None or not session.usable:
            return Verified(away=True)
        since = time.monotonic_ns()
        with self.client.match(keys) as match:
            self.journal.write(Reported.HIT, keys[: len(match)].data, since)
            self.journal.write(Reported.REACHED, keys[len(match) : match.available_pages].data, since)
            if match.available_pages < len(keys) and self.client.session is session and not session.closed:
                self.journal.write(Reported.MISSED, keys[match.available_pages], since)
            loaded = self.load(match, keys, timeout)
            return Verified(len(match), match.available_pages, loaded)

    def load(self, match: Match, keys: Keys, timeout: float = 0.0, most: int = 0) -> int:
        """Copies and compares the matched pages and those on disk after them. Returns the number of right pages.

        With `most`, pages after these are loaded from the fleet, up to that number in all.
        """
        since, hits = time.monotonic_ns(), len(match)
        out = np.zeros((max(match.available_pages, hits, most), self.page_bytes), dtype=np.uint8)
        done = self.client.load(match, out, timeout=timeout) if len(out) else 0
        if done < hits:
            self.journal.write(
                Reported.WRONG, keys[done], since, note=f"only {done} of {hits} pinned pages were copied"
            )
        right = [page for page in range(done) if self._is_right(out[page], keys[page], since)]
        self.journal.write(Reported.LOADED, [keys[page] for page in right], since)
        return len(right)

    def _is_right(self, page: np.ndarray, key: bytes, since: int) -> bool:
        found = wrong(page, key, self.seed)
        if found is not None:
            self.journal.write(Reported.WRONG, key, since, note=str(found))
        return found is None
