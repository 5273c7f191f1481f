"""The client's own thread: finds the daemon, attaches, listens, and finds it again when it is gone."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..shm.link import Greeting, Link, LinkError
from ..shm.protocol import Answer, Attach

log = logging.getLogger("pagetier.client")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_ANSWER_S = 2.0


class Listener(Protocol):
    """Who is told by the keeper, on its thread."""

    def greeting(self) -> Attach:
        """What to say to the daemon."""

    def take_up(self, link: Link, greeting: Greeting) -> None:
        """The link is up. Closes the descriptors. Raises LinkError if the segments are of no use."""

    def answered(self, answer: Answer) -> None:
        """The daemon answered a request."""

    def lost(self) -> None:
        """The link is gone; what was asked over it is not answered any more."""


class Keeper:
    """Keeps a client attached from start() to stop(). One line in the log whenever that changes."""

    def __init__(self, path: Callable[[], Path], listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._link: Link | None = None
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="pagetier-keeper", daemon=True)

    def start(self) -> None:
        """Begins to look for the daemon."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the link. Returns when the thread is done, at most a few seconds later."""
        with self._guard:
            self._stopping.set()
            if self._link is not None:
                self._link.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * _ANSWER_S)

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._attach_and_listen()
                pause = _FIRST_PAUSE_S
            except (LinkError, OSError) as error:
                self._tell(f"no daemon: {error}; every store is refused, and what is not mapped is a miss")
            self._stopping.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _attach_and_listen(self) -> None:
        path = self._path()
        link = Link(path, _ANSWER_S)
        try:
            greeting = link.greet(self._listener.greeting(), _ANSWER_S)
            self._listener.take_up(link, greeting)
            self._tell(f"attached to {path} in slot {greeting.welcome.slot}")
            self._listen(link)
        finally:
            with self._guard:
                self._link = None
            self._listener.lost()
            link.close()

    def _listen(self, link: Link) -> None:
        with self._guard:
            if self._stopping.is_set():
                return
            self._link = link
        try:
            for answer in link.receive():
                self._listener.answered(answer)
        except LinkError as error:
            self._tell(f"{error}; stores are refused until it is back")

    def _tell(self, line: str) -> None:
        if line != self._told:
            log.log(logging.INFO if line.startswith("attached") else logging.WARNING, "%s", line)
        self._told = line
