"""An engine that stores prompts and loads them again: `python -m host_events.engine SOCKET SEED`, until its input ends.

It writes a line of JSON after each request, which outlives it.
"""

from __future__ import annotations

import random
import select
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from eventually import PATIENCE_S
from oracle.page_contents import content, wrong
from pagetier.client import Client, Keys
from running_daemon import namespace

PAGES: Final = 4
PAGE: Final = 64 << 10
PROMPTS: Final = 24
_REST_S: Final = 0.005


class Served(msgspec.Struct):
    """The service that it got so far.

    Attributes:
        missed: Pages that were reported as stored, and were neither in memory nor on disk.
        wrong: Pages with other bytes.
    """

    rounds: int = 0
    stored: int = 0
    refused: int = 0
    loaded: int = 0
    missed: int = 0
    wrong: int = 0
    reason: str = ""


class SeededEngine:
    """An engine whose sequence of prompts follows from the seed."""

    def __init__(self, socket: Path, seed: int, timeout: float = PATIENCE_S) -> None:
        self.served = Served()
        self.client = Client(socket, name=f"engine {seed}", timeout=timeout)
        self._chance = random.Random(seed)
        self._seed = seed
        self._stored: set[bytes] = set()

    def request(self) -> None:
        """Serves one prompt."""
        self.serve(self.next_prompt())
        self.served.rounds += 1

    def next_prompt(self) -> Keys:
        """Returns the keys of one of its prompts."""
        return namespace(salt=f"{self._seed} {self._chance.randrange(PROMPTS)}").keys(range(16 * PAGES))

    def serve(self, keys: Keys) -> None:
        """Loads the cached pages and stores the others."""
        self.verify(keys)
        self.store(keys)

    def verify(self, keys: Keys) -> None:
        """Loads and compares the cached pages."""
        with self.client.match(keys) as match:
            missed = self._missed(keys, match.available_pages)
            out = np.zeros((PAGES, PAGE), np.uint8)
            done = self.client.load(match, out) if match.available_pages else 0
        self.served.missed += len(missed)
        self._stored.difference_update(missed)
        self.served.loaded += done
        self.served.wrong += sum(wrong(out[page], keys[page], self._seed) is not None for page in range(done))

    def _missed(self, keys: Keys, available: int) -> set[bytes]:
        """Returns the stored pages that are gone: not those after a page that is gone, which no match can find."""
        return {
            key
            for page, key in enumerate(keys)
            if page >= available and key in self._stored and not self._is_available(keys[page : page + 1])
        }

    def _is_available(self, key: Keys) -> bool:
        with self.client.match(key) as match:
            return match.available_pages > 0

    def store(self, keys: Keys) -> None:
        """Stores all pages that are not cached."""
        result = self.client.store(keys, [content(key, self._seed, PAGE) for key in keys])
        self.served.stored += result.stored
        self.served.refused += result.refused
        self.served.reason = result.reason or self.served.reason
        if result.stored + result.present == PAGES:
            self._stored.update(keys)


def main() -> None:
    """Runs until standard input ends."""
    engine = SeededEngine(Path(sys.argv[1]), int(sys.argv[2]))
    while not select.select([sys.stdin], [], [], _REST_S)[0]:
        engine.request()
        sys.stdout.buffer.write(msgspec.json.encode(engine.served) + b"\n")
        sys.stdout.buffer.flush()
    engine.client.close()


if __name__ == "__main__":
    main()
