"""The attachment of one process: its session with the segments and its connection to the daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from pagetier.client.reconnect import LinkEvent, ReconnectThread
from pagetier.client.rpc import Requests
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas
from pagetier.shm import clock
from pagetier.shm._core import Session, ShmError
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Greeting, Link, RefusedError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import BUILD, HINTS, Attach
from pagetier.shm.safe_event import SafeEvent

log = logging.getLogger("pagetier.client")

_TOKEN_BITS = 63
_CHUNK = 64 << 20
_GIB = 1 << 30
_RETIRE_S = 5.0
_RETIRE_PAUSE_S = 0.001
_LONGEST_RETIRE_PAUSE_S = 1.0


class LinkedSession(msgspec.Struct, frozen=True, eq=False):
    """A connection, the session whose memory its requests are about, and the pages granted to that session.

    Attributes:
        link: The connection.
        session: The mapped segments.
        granted: The serials of the granted pages by the part that is written: a process may write several parts of a
            page, and finish one of them earlier. They are shared by all threads that write or release such pages, and
            changed by single method calls only, which are atomic for other threads. So they need no lock, and a forked
            child cannot inherit a lock that is taken.
        takes_hints: Whether the daemon understands hints.
    """

    link: Link
    session: Session
    granted: dict[int, set[int]]
    takes_hints: bool = False


class Attachment:
    """The attachment of a client in one process; a forked child needs its own. Thread-safe.

    Attributes:
        session: The mapped segments. None until they are mapped, and again after a daemon released its memory in an
            orderly stop; the session then ends with the last running copy, even if matches still refer to it. It
            outlives the connection: without a daemon, mapped pages can still be matched and loaded.
        linked: The connection with its session; None without a daemon.
        requests: The requests that are open.
        arenas: The memory that this process has registered with GPU drivers.
        attached: Set while there is a connection.
        report: Receives each change of the connection, in the background thread.
    """

    def __init__(self, path: Callable[[], Path], name: str, report: Callable[[LinkEvent], None]) -> None:
        self.session: Session | None = None
        self.linked: LinkedSession | None = None
        self.requests = Requests()
        self.arenas = PinnedArenas(lambda: self.session)
        self.attached = SafeEvent()
        self._granted: dict[int, set[int]] = {}
        self._pid = os.getpid()
        self._name = name
        self._token = secrets.randbits(_TOKEN_BITS)
        # Cleared while a daemon has accepted a connection and has not answered the attach request.
        self._settled = SafeEvent()
        # A call waited in vain for a daemon that accepted a connection: other calls do not wait until it is attached.
        self._hangs = False
        self.report = report
        self._thread = ReconnectThread(path, self)

    @property
    def foreign(self) -> bool:
        """Whether this attachment is the parent's, seen from a forked child."""
        return self._pid != os.getpid()

    def start(self) -> None:
        """Starts to look for the daemon, in the background."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Releases all pins, the memory and the slot. After `timeout` seconds the rest happens in the background."""
        self._thread.stop(timeout)

    def drop(self) -> None:
        """Does what stop() does for a client that was garbage collected: without waiting, and not in a forked child."""
        if not self.foreign:
            self._thread.stop_soon()

    def disown(self) -> None:
        """Closes in a forked child what it inherited. The parent is not affected."""
        self._thread.disown()

    def wait_linked(self, timeout: float) -> LinkedSession | None:
        """Returns the connection, waiting at most `timeout` seconds if a daemon has accepted one but not answered yet.

        Returns None without one. Only one call waits for a daemon that hangs.
        """
        if self.linked is None and not self._hangs and timeout > 0 and not self._settled.wait(timeout):
            self._hangs = True
        return self.linked

    def greeting(self) -> Attach:
        """Returns the attach request. Its token never changes, so that the daemon assigns the same slot again."""
        serials = [serial for of_part in list(self._granted.values()) for serial in list(of_part)]
        session = self.session
        mapped = session.segments_id if session is not None else 0
        return Attach(BUILD, self._token, self._name, np.array(serials, dtype="<u8").tobytes(), mapped)

    def connected(self) -> None:
        """Makes calls with a timeout wait, because a daemon has accepted a connection."""
        self._settled.clear()

    def attach(self, link: Link, greeting: Greeting) -> None:
        """Attaches to the segments that the daemon sent, and keeps the old session if they are the same.

        After a restart of the daemon they are: it has adopted them, so matches and granted pages stay valid.

        Raises:
            RefusedError: The segments cannot be mapped or used.
        """
        try:
            session = self._session_for(greeting)
        except ShmError as error:
            raise RefusedError(str(error)) from error
        except (OSError, MemoryError) as error:
            raise RefusedError(_mapping_failure(greeting, error)) from error
        finally:
            for descriptor in greeting.descriptors:
                os.close(descriptor)
        # The connection comes before the events: a thread that they wake finds it.
        self.linked = LinkedSession(link, session, self._granted, HINTS in greeting.welcome.extras)
        self._hangs = False
        self.attached.set()
        self._settled.set()

    def pump(self, link: Link) -> None:
        """Reads responses that no thread waits for, or waits a moment for a thread that reads. Raises LinkError."""
        self.requests.pump(link)

    def disconnected(self) -> None:
        """Detaches after the connection was lost. The session stays mapped."""
        # The connection comes first: a request that begins from here on finds none. Those that are open fail below.
        self.attached.clear()
        self.linked = None
        self.requests.fail_all()
        point("client.lost")

    def attempt_ended(self) -> bool:
        """Ends an attempt to attach, and unmaps the segments if a daemon has released them.

        Returns:
            False if the segments were released: then there is no slot either.
        """
        self._settled.set()
        session = self.session
        if session is None or not session.closed:
            return True
        self.session = None
        self.arenas.check_session()
        _retire_soon(session)
        point("client.released")
        return False

    def detach(self) -> bool:
        """Releases pins, memory and slot.

        Returns:
            False if there is no slot to return: the segments were released with all slots, or a copy runs for too long,
            and the end of the process frees the slot.
        """
        # Nothing new may begin before the session ends: matches need the session, stores the connection.
        session, self.session = self.session, None
        self.attached.clear()
        self.linked = None
        self._settled.set()
        self.requests.fail_all()
        self.arenas.check_session()
        point("client.leaving")
        return session is None or (not session.closed and _retire(session))

    def _session_for(self, greeting: Greeting) -> Session:
        old, welcome = self.session, greeting.welcome
        if old is not None and (old.segments_id, old.slot) == (welcome.segments_id, welcome.slot):
            return old
        index, locks, arena = greeting.descriptors
        session = Session(index, locks, arena, welcome.slot)
        point("client.mapped")
        self._granted = {}  # serials of other segments have no meaning here
        self.session = session
        if old is not None and old.segments_id != welcome.segments_id:
            _retire_soon(old)
        if welcome.populated:
            self._populate_soon(session)
        return session

    def _populate_soon(self, session: Session) -> None:
        try:
            threading.Thread(target=self._populate, args=(session,), name="pagetier-populate", daemon=True).start()
        except RuntimeError as error:  # for example if the address space has no room for the stack
            log.debug("cannot map the arena in advance, each page is mapped at its first use: %s", error)

    def _populate(self, session: Session) -> None:
        """Maps all memory before its first use, so that no match and no copy waits for page faults."""
        with contextlib.suppress(OSError):
            session.populate_index()
        for offset in range(0, session.arena_bytes, _CHUNK):
            if self.session is not session:
                return
            try:
                session.populate(offset, min(_CHUNK, session.arena_bytes - offset))
            except (OSError, ValueError) as error:
                log.debug("cannot map the arena in advance, each page is mapped at its first use: %s", error)
                return


class AttachedClient(Protocol):
    """The part of a Client that reaches the daemon."""

    @property
    def attachment(self) -> Attachment:
        """See Client.attachment."""


def _retire_soon(session: Session) -> None:
    """Ends a session after its running copies, without waiting, even if matches still refer to it."""
    if not session.retire():
        threading.Thread(target=_retire_in_background, args=(session,), name="pagetier-retire", daemon=True).start()


def _retire_in_background(session: Session) -> None:
    pause = _RETIRE_PAUSE_S
    while not session.retire():
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_RETIRE_PAUSE_S)


def _retire(session: Session) -> bool:
    """Ends the session when no thread copies or matches. Returns False if that takes longer than 5 seconds."""
    deadline = Deadline(_RETIRE_S)
    while not session.retire():
        if deadline.is_over:
            return False
        clock.sleep(_RETIRE_PAUSE_S)
    return True


def _mapping_failure(greeting: Greeting, error: OSError | MemoryError) -> str:
    """Returns the reason, with the limit on the address space if there is one, which is the usual cause."""
    nbytes = sum(os.fstat(descriptor).st_size for descriptor in greeting.descriptors)
    why = getattr(error, "strerror", None) or "no memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        why += f"; the address space of this process is limited to {limit / _GIB:.1f} GiB (RLIMIT_AS, ulimit -v)"
    return f"cannot map the daemon's segments of {nbytes / _GIB:.1f} GiB: {why}"


def display_name(name: str) -> str:
    """Returns the name, or that of the program, with "?" for characters that cannot be printed or encoded.

    Raises:
        TypeError: The name is not a text.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a client must be str, not {type(name).__name__}")
    return "".join(letter if letter.isprintable() else "?" for letter in name or _program())


def _program() -> str:
    return Path((sys.argv or [""])[0] or sys.executable).name
