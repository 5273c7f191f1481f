"""The background thread of a client: attaches to the daemon, watches the connection and reconnects."""

from __future__ import annotations

import _thread
import contextlib
import logging
import queue
import random
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec

from pagetier.shm.client_socket import nothing_listens
from pagetier.shm.daemon_link import Greeting, Link, LinkError, RefusedError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Attach, Welcome
from pagetier.shm.safe_event import SafeEvent
from pagetier.shm.socket_path import open_remedy
from pagetier.shm.timed_get import get_in_time

log = logging.getLogger("pagetier.client")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_ANSWER_S = 2.0
_GOODBYE_S = 0.5
_CONFIRMED_S = 0.05
_ONLY_MAPPED = "stores are rejected, only mapped pages can be loaded"


class LinkState(Enum):
    """What has become of the connection to the daemon."""

    ATTACHED = 1
    UNREACHABLE = 2
    LOST = 3
    REJECTED = 4


class LinkEvent(msgspec.Struct, frozen=True):
    """A change of the connection to the daemon.

    Attributes:
        state: The new state.
        detail: The daemon's socket and the slot if the client is attached, otherwise the reason why it is not.
        extras: What the daemon has if the client is attached; see Welcome.
    """

    state: LinkState
    detail: str
    extras: tuple[str, ...] = ()


class ReconnectListener(Protocol):
    """The receiver of connection events. The background thread calls it."""

    def greeting(self) -> Attach:
        """Returns the attach request."""

    def connected(self) -> None:
        """Notes that a daemon accepted a connection and will soon accept or reject the attach request."""

    def attach(self, link: Link, greeting: Greeting) -> None:
        """Attaches with the daemon's answer and closes its descriptors.

        Raises RefusedError if the segments cannot be used.
        """

    def pump(self, link: Link) -> None:
        """Reads responses that no thread waits for, or waits a moment for a thread that reads. Raises LinkError."""

    def disconnected(self) -> None:
        """Notes that the connection is closed: open requests get no response."""

    def attempt_ended(self) -> bool:
        """Notes the end of an attempt. Returns False if the segments were released, with all slots."""

    def detach(self) -> bool:
        """Releases everything for good. Returns False if there is no slot to return. May be called again."""

    def report(self, event: LinkEvent) -> None:
        """Logs a change of the connection."""


class ReconnectThread:
    """The thread that keeps a client attached from start() to stop(). It reports each change of the state once.

    Each attempt has the same steps: connect, send Attach, map the segments of the answer, listen until the connection
    is lost or stop() is called. After each attempt there is a pause, which grows while no daemon accepts the client.

    The daemon may have assigned a slot from the moment when Attach was sent, even if its answer was not read. The
    daemon keeps a slot as long as the process lives. So the thread ends only when a daemon has confirmed that the slot
    is free: this daemon, or after its death the next one, which finds the slot in the segments.
    """

    def __init__(self, path: Callable[[], Path], listener: ReconnectListener) -> None:
        self._path = path
        self._listener = listener
        self._leaving = False
        self._has_slot = False
        self._started = SafeEvent()
        self._released = SafeEvent()
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._link: Link | None = None
        self._reported: LinkEvent | None = None
        self._thread = threading.Thread(target=self._run, name="pagetier-reconnect", daemon=True)

    def start(self) -> None:
        """Starts to look for the daemon.

        A helper thread calls Thread.start(), because only the main thread runs signal handlers: an interrupt inside it
        would leave a thread that Python lists forever and that never runs.
        """
        _thread.start_new_thread(self._start_thread, ())
        self._started.wait()

    def stop(self, timeout: float) -> None:
        """Releases everything, at most `timeout` seconds long; then the thread finishes in the background.

        A healthy daemon confirms in this time that the slot is free; a slow daemon is not waited for.
        """
        self.stop_soon()
        if self._thread is not threading.current_thread() and self._released.wait(timeout):
            self._thread.join(min(timeout, _CONFIRMED_S))

    def stop_soon(self) -> None:
        """Stops without waiting. May be called by a finalizer at any point of any thread."""
        self._leaving = True
        self._stops.put(None)  # the only queue that a finalizer may put to
        if (link := self._link) is not None:
            link.stop()

    def disown(self) -> None:
        """Closes the inherited link in a forked child, where the thread does not run."""
        if self._link is not None:
            self._link.disown()

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            log.warning("pagetier cannot start its thread, so it caches nothing: %s", error)
        finally:
            self._started.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._leaving:
            try:
                self._attach_and_listen()
                pause = _FIRST_PAUSE_S
            except RefusedError as error:
                self._report(LinkState.REJECTED, str(error))
            except (LinkError, OSError) as error:
                self._report_unreachable(str(error), pause)
            self._has_slot &= self._listener.attempt_ended()
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._leave()
        self._released.set()
        self._free_slot()

    def _pause(self, seconds: float) -> None:
        """Waits for a random part of `seconds`, so that clients do not return all at once. stop() ends it."""
        with contextlib.suppress(queue.Empty):
            get_in_time(self._stops, seconds * random.uniform(0.5, 1.0))

    def _attach_and_listen(self) -> None:
        path = self._path()
        link = _connect(path)
        self._link = link  # set before _leaving is read: stop_soon() does the two in the opposite order
        if self._leaving:
            self._link = None
            link.close()  # a daemon takes Detach only after Attach: _free_slot() sends both
            return
        try:
            point("client.connected")
            self._listener.connected()
            welcome = self._greet(link)
            point("client.attached")
            self._report(LinkState.ATTACHED, f"{path} in slot {welcome.slot}", welcome.extras)
            self._listen(link)
        finally:
            # Detach needs the connection, so it comes first. Open requests fail last: no thread can send any more then.
            self._link = None
            if self._leaving:
                self._leave_over(link)
            link.close()
            self._listener.disconnected()

    def _greet(self, link: Link) -> Welcome:
        """Attaches and returns the daemon's answer. The slot is returned at once if the segments cannot be used."""
        # Set before Attach is sent: if its answer is lost, the daemon may have assigned a slot. A daemon that rejects
        # the client has assigned none, but a slot from an earlier attempt stays ours.
        had_slot, self._has_slot = self._has_slot, True
        try:
            greeting = link.greet(self._listener.greeting(), _ANSWER_S)
        except RefusedError:
            self._has_slot = had_slot
            raise
        point("client.greeted")
        try:
            self._listener.attach(link, greeting)
        except RefusedError:
            with contextlib.suppress(LinkError):
                link.detach(_GOODBYE_S)
            raise
        return greeting.welcome

    def _listen(self, link: Link) -> None:
        try:
            while link.watch():
                self._listener.pump(link)
        except LinkError as error:
            self._report(LinkState.LOST, str(error))

    def _leave(self) -> None:
        if not self._listener.detach():
            self._has_slot = False

    def _leave_over(self, link: Link) -> None:
        """Detaches, also if Attach was not answered yet: the daemon reads Detach after it."""
        self._leave()  # pins and memory first: after Detach the daemon may assign the slot to another process
        if not self._has_slot:
            return
        try:
            link.detach(_GOODBYE_S)
        except LinkError as error:
            log.debug("cannot report to the daemon that the slot is free: %s", error)
            return
        self._released.set()  # stop() now waits only a moment more, for the daemon's confirmation
        self._has_slot = not link.wait_detached()
        point("client.gone")

    def _free_slot(self) -> None:
        """Attaches and detaches until a daemon has confirmed that this session has no slot."""
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

    def _report_unreachable(self, why: str, pause: float) -> None:
        """Reports why the daemon cannot be reached. After a loss this waits for as long as a restart takes."""
        lost = self._reported is not None and self._reported.state is LinkState.LOST
        if not lost or pause >= _LONGEST_PAUSE_S:
            self._report(LinkState.UNREACHABLE, why)

    def _report(self, state: LinkState, detail: str, extras: tuple[str, ...] = ()) -> None:
        event, last = LinkEvent(state, detail, extras), self._reported
        if not self._leaving and (last is None or _differ(event, last)):
            self._listener.report(event)
        self._reported = event


def _connect(path: Path) -> Link:
    """Returns a connection. Raises LinkError, which says what to do if this user may not open the socket."""
    try:
        return Link(path, _ANSWER_S)
    except LinkError as error:
        if isinstance(error.__cause__, PermissionError):
            raise LinkError(f"{error}: {open_remedy(path)}") from error
        raise


def log_event(event: LinkEvent) -> None:
    """Logs a change of the connection."""
    match event.state:
        case LinkState.ATTACHED:
            log.info("attached to %s", event.detail)
        case LinkState.REJECTED:
            log.warning("cannot attach: %s; %s", event.detail, _ONLY_MAPPED)
        case LinkState.UNREACHABLE:
            start = ": start pagetierd, or name its socket" if nothing_listens(event.detail) else ""
            log.warning("cannot reach the daemon: %s%s; %s", event.detail, start, _ONLY_MAPPED)
        case LinkState.LOST:
            log.warning("%s; stores are rejected until it is back", event.detail)


def _differ(event: LinkEvent, last: LinkEvent) -> bool:
    """Returns whether the state has changed: a daemon stays unreachable for whatever reason, a rejection may change."""
    if event.state is LinkState.REJECTED is last.state:
        return event.detail != last.detail
    return event.state is not last.state
