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

from pagetier.shm.daemon_link import Greeting, Link, LinkError, RefusedError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Attach

log = logging.getLogger("pagetier.client")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_ANSWER_S = 2.0
_GOODBYE_S = 0.5
_CONFIRMED_S = 0.05


class ReconnectListener(Protocol):
    """Who is told by the keeper, on its thread."""

    def greeting(self) -> Attach:
        """What to say to the daemon."""

    def meets(self) -> None:
        """A daemon's socket answers: whether there is an attachment is known soon."""

    def take_up(self, link: Link, greeting: Greeting) -> None:
        """The link is up. Closes the descriptors. Raises RefusedError if the segments are of no use."""

    def pump(self, link: Link) -> None:
        """There is something to read that nobody waits for. Raises LinkError at the end of the link."""

    def lost(self) -> None:
        """The link is closed; what was asked over it is not answered any more."""

    def rests(self) -> bool:
        """The attempt is over, and the next one begins later. False if the segments ended, and all slots with them."""

    def leave(self) -> bool:
        """Lets go of everything, for good. False if no daemon can be told so. May be called again."""


class ReconnectThread:
    """Keeps a client attached from start() to stop(). One line in the log whenever that changes.

    The daemon may have given a slot from when Attach was sent, whether its answer was read or not. A slot is kept as
    long as the process lives, so the keeper ends only when a daemon has confirmed that the slot is free: this one, or
    after its death the next one, which finds the slot in the segments.
    """

    def __init__(self, path: Callable[[], Path], listener: ReconnectListener) -> None:
        self._path = path
        self._listener = listener
        self._leaving = False
        self._has_slot = False
        self._let_go = threading.Event()
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._link: Link | None = None
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="pagetier-keeper", daemon=True)

    def start(self) -> None:
        """Begins to look for the daemon."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Lets go of everything, or returns after `timeout` seconds: then the thread does it later.

        A daemon that is well confirms meanwhile that the slot is free; one that is not is not waited for.
        """
        self.stop_soon()
        if self._thread is not threading.current_thread():
            self._let_go.wait(timeout)
            self._thread.join(min(timeout, _CONFIRMED_S))

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
            self._has_slot &= self._listener.rests()
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._leave()
        self._let_go.set()
        self._free_slot()

    def _pause(self, seconds: float) -> None:
        """Waits a little, so that the clients of a daemon do not come back all at once; less if stopped."""
        with contextlib.suppress(queue.Empty):
            self._stops.get(timeout=seconds * random.uniform(0.5, 1.0))

    def _attach_and_listen(self) -> None:
        path = self._path()
        link = Link(path, _ANSWER_S)
        self._link = link  # before the look at _leaving: stop_soon() does the two in the other order
        try:
            if not self._leaving:
                point("client.connected")
                self._listener.meets()
                slot = self._greet(link)
                point("client.attached")
                self._tell("attached", f"attached to {path} in slot {slot}")
                self._listen(link)
        finally:
            self._link = None
            if self._leaving:
                self._leave_over(link)
            link.close()
            self._listener.lost()

    def _greet(self, link: Link) -> int:
        """Attaches; returns the slot. It is given back at once where the segments are of no use."""
        had_slot, self._has_slot = self._has_slot, True
        try:
            greeting = link.greet(self._listener.greeting(), _ANSWER_S)
        except RefusedError:
            self._has_slot = had_slot
            raise
        point("client.greeted")
        try:
            self._listener.take_up(link, greeting)
        except RefusedError:
            with contextlib.suppress(LinkError):
                link.detach(_GOODBYE_S)
            raise
        return greeting.welcome.slot

    def _listen(self, link: Link) -> None:
        try:
            while link.watch():
                self._listener.pump(link)
        except LinkError as error:
            self._tell("away", f"{error}; stores are refused until it is back")

    def _leave(self) -> None:
        if not self._listener.leave():
            self._has_slot = False

    def _leave_over(self, link: Link) -> None:
        """Also where Attach was sent and not answered: the daemon reads Detach behind it."""
        self._leave()
        if not self._has_slot:
            return
        try:
            link.detach(_GOODBYE_S)
        except LinkError as error:
            log.debug("the daemon could not be told that the slot is free: %s", error)
            return
        self._let_go.set()
        self._has_slot = not link.wait_detached()
        point("client.gone")

    def _free_slot(self) -> None:
        """Attaches and leaves, until a daemon has confirmed that this session has no slot."""
        pause = _FIRST_PAUSE_S
        while self._has_slot:
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            with contextlib.suppress(LinkError, OSError):
                self._attach_and_leave()

    def _attach_and_leave(self) -> None:
        link = Link(self._path(), _ANSWER_S)
        try:
            link.send(self._listener.greeting(), _ANSWER_S)
            link.detach(_GOODBYE_S)
            self._has_slot = not link.wait_detached()
        finally:
            link.close()

    def _tell(self, state: str, line: str) -> None:
        if state != self._told and not self._leaving:
            log.log(logging.INFO if state == "attached" else logging.WARNING, "%s", line)
        self._told = state
