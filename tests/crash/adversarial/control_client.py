"""An honest engine that works beside adversarial ones, in a thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

from eventually import PATIENCE_S, eventually, pace
from host_events.engine import PAGES, SeededEngine, Served
from pagetier.client import Keys
from running_daemon import namespace

_REST_S: Final = 0.002
_TRIES: Final = 50


class EngineOfNewPrompts(SeededEngine):
    """An engine that stores a new prompt each time, before it loads it.

    Attributes:
        again: How often it stored a prompt again, because pages of it were gone.
    """

    again = 0

    def next_prompt(self) -> Keys:
        """Returns the keys of a prompt that was not stored before."""
        number = self.served.rounds
        return namespace(salt=f"honest {number % 8}").keys(range(number, number + 16 * PAGES))

    def serve(self, keys: Keys) -> None:
        """Stores and loads all pages, again if those of other engines displaced them in between."""
        before = self.served.loaded
        for _ in range(_TRIES):
            self.store(keys)
            self.served.loaded = before  # counts the pages of the last try only
            self.verify(keys)
            if self.served.loaded == before + PAGES:
                return
            self.again += 1


class Honest:
    """Stores, matches and loads new prompts one by one, within a context; `served` has the result."""

    def __init__(self, socket: Path) -> None:
        self.engine = EngineOfNewPrompts(socket, seed=1, timeout=PATIENCE_S)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="honest")

    @property
    def served(self) -> Served:
        """The service that it got so far."""
        return self.engine.served

    def wait_for(self, rounds: int) -> bool:
        """Waits until it has done this many more rounds; returns False if one of them does not end."""
        began = self.served.rounds
        return all(eventually(lambda: self.served.rounds > began + done) for done in range(rounds))  # noqa: B023

    def __enter__(self) -> Self:
        assert self.engine.client.wait_attached(PATIENCE_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.engine.client.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            self.engine.request()
            pace(_REST_S)
