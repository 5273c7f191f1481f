"""The client's own thread: finds the daemon, attaches, listens, and finds it again when it is gone."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..shm.link import Greeting, Link, LinkError, RefusedError
from ..shm.points import point
from ..shm.protocol import Attach

log = logging.getLogger("pagetier.client")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_ANSWER_S = 2.0


class Listener(Protocol):
    """Who is told by the keeper, on its thread."""

    def greeting(self) -> Attach:
        """What to say to the daemon."""

    def take_up(self, link: Link, greeting: Greeting) -> None:
        """The link is up. Closes the descriptors. Raises RefusedError if the segments are of no use."""

    def pump(self, link: Link) -> None:
        """There is something to read that nobody waits for. Raises LinkError at the end of the link."""

    def lost(self) -> None:
        """The link is closed; what was asked over it is not answered any more."""

    def alone(self) -> None:
        """There was no daemon to be found again."""

    def leave(self, link: Link | None) -> None:
        """The keeper stops: time to let go of everything, and to say so over the link if there is one."""


class Keeper:
    """Keeps a client attached from start() to stop(). One line in the log whenever that changes."""

    def __init__(self, path: Callable[[], Path], listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._leaving = False
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._link: Link | None = None
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="pagetier-keeper", daemon=True)

    def start(self) -> None:
        """Begins to look for the daemon."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Ends the link. Returns when the thread is done, or after `timeout` seconds: then it goes on to its end."""
        self.stop_soon()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def stop_soon(self) -> None:
        """The same without waiting: also for who comes from collecting garbage, at any point of any thread."""
        self._leaving = True
        self._stops.put(None)  # of all queues this one may be put to from there
        link = self._link
        if link is not None:
            link.stop()

    def disown(self) -> None:
        """For a forked child, where the thread is not: closes the inherited link."""
        if self._link is not None:
            self._link.disown()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._leaving:
            try:
                self._attach_and_listen()
                pause = _FIRST_PAUSE_S
            except RefusedError as error:
                self._tell(str(error), f"{error}; every store is refused, and what is not mapped is a miss")
            except (LinkError, OSError) as error:
                self._tell("away", f"no daemon: {error}; every store is refused, and what is not mapped is a miss")
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._listener.leave(None)

    def _pause(self, seconds: float) -> None:
        """Waits a little, so that the clients of a daemon do not come back all at once; less if stopped."""
        with contextlib.suppress(queue.Empty):
            self._stops.get(timeout=seconds * random.uniform(0.5, 1.0))

    def _attach_and_listen(self) -> None:
        path = self._path()
        try:
            link = Link(path, _ANSWER_S)
        except LinkError:
            self._listener.alone()
            raise
        self._link = link  # before the look at _leaving: stop_soon() does the two in the other order
        try:
            if not self._leaving:
                point("client.connected")
                greeting = link.greet(self._listener.greeting(), _ANSWER_S)
                point("client.greeted")
                self._listener.take_up(link, greeting)
                point("client.attached")
                self._tell("attached", f"attached to {path} in slot {greeting.welcome.slot}")
                self._listen(link)
        finally:
            self._link = None
            link.close()
            self._listener.lost()

    def _listen(self, link: Link) -> None:
        try:
            while link.watch():
                self._listener.pump(link)
        except LinkError as error:
            self._tell("away", f"{error}; stores are refused until it is back")
        if self._leaving:
            self._listener.leave(link)

    def _tell(self, state: str, line: str) -> None:
        if state != self._told and not self._leaving:
            log.log(logging.INFO if state == "attached" else logging.WARNING, "%s", line)
        self._told = state
