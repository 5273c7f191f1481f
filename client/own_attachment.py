"""The attachment of this process with the thread that changes it: attaching, losing the connection, and detaching."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pagetier.client.attachment import Attachment, LinkedSession
from pagetier.client.reconnect import LinkEvent, ReconnectThread
from pagetier.shm import clock
from pagetier.shm._core import Session, ShmError
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Greeting, Link, RefusedError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import BUILD, HINTS, Attach

log = logging.getLogger("pagetier.client")

_TOKEN_BITS = 63
_CHUNK = 64 << 20
_GIB = 1 << 30
_RETIRE_S = 5.0
_RETIRE_PAUSE_S = 0.001
_LONGEST_RETIRE_PAUSE_S = 1.0


class OwnAttachment(Attachment):
    """The attachment of a client in this process, for the client itself. Thread-safe.

    Attributes:
        report: Receives each change of the connection, in the background thread.
    """

    def __init__(self, path: Callable[[], Path], name: str, report: Callable[[LinkEvent], None]) -> None:
        super().__init__()
        self._granted: dict[int, set[int]] = {}
        self._name = name
        self._token = secrets.randbits(_TOKEN_BITS)
        self.report = report
        self._thread = ReconnectThread(path, self)

    def start(self) -> None:
        """Starts to look for the daemon, in the background."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Releases all pins, the memory and the slot. After `timeout` seconds the rest happens in the background."""
        self._thread.stop(timeout)

    def drop(self) -> None:
        """Does what stop() does for a client that was garbage collected: without waiting, and not in a forked child."""
        if self.pid == os.getpid():
            self._thread.stop_soon()

    def disown(self) -> None:
        """Closes in a forked child what it inherited. The parent is not affected."""
        self._thread.disown()

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


def started(owner: object, attachments: dict[int, OwnAttachment], fresh: OwnAttachment) -> OwnAttachment:
    """Returns the attachment of this process, which is `fresh`, started, if it had none.

    Threads that call this at the same time get the same one. It is dropped with its owner.
    """
    attachment = attachments.setdefault(os.getpid(), fresh)
    if attachment is fresh:
        weakref.finalize(owner, attachment.drop).atexit = False
        try:
            attachment.start()
        except BaseException:
            attachment.drop()  # an interrupt: no caller has the client to close
            raise
    return attachment


def _retire_soon(session: Session) -> None:
    """Ends a session after its running copies, without waiting, even if matches still refer to it."""
    if session.retire():
        return
    try:
        threading.Thread(target=_retire_in_background, args=(session,), name="pagetier-retire", daemon=True).start()
    except RuntimeError as error:  # as in _populate_soon()
        log.debug("cannot unmap the old segments after their last copy, their last match unmaps them: %s", error)


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
