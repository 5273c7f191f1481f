"""This process as a member: its session with the segments, its link to the daemon, from start() to stop()."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pagetier.client.reconnect import ReconnectThread
from pagetier.client.rpc import LinkedSession, Requests
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas
from pagetier.shm._core import Session, ShmError
from pagetier.shm.daemon_link import Greeting, Link, RefusedError
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import BUILD, Attach

log = logging.getLogger("pagetier.client")

_TOKEN_BITS = 63
_CHUNK = 64 << 20
_GIB = 1 << 30
_RETIRE_S = 5.0
_RETIRE_PAUSE_S = 0.001
_LONGEST_RETIRE_PAUSE_S = 1.0


class Attachment:
    """What a client has in one process; a forked child needs one of its own. From any thread.

    session: None until the segments are mapped, and again when a daemon has stopped on purpose: then it ends with the
    last copy that is under way, whoever still holds a match. It outlives the link: with the daemon down, matching and
    loading go on.
    """

    def __init__(self, path: Callable[[], Path], name: str) -> None:
        self.session: Session | None = None
        self.attachment: LinkedSession | None = None
        self.requests = Requests()
        self.arenas = PinnedArenas(lambda: self.session)
        self.attached = threading.Event()
        self._held: set[int] = set()
        self._pid = os.getpid()
        self._name = name
        self._token = secrets.randbits(_TOKEN_BITS)
        self._known = threading.Event()  # cleared while a daemon's socket answers, and it is open what comes of it
        self._hangs = False  # a call waited in vain for a daemon whose socket answers: no other does until it is there
        self._keeper = ReconnectThread(path, self)

    @property
    def foreign(self) -> bool:
        """Whether this is the parent's, seen from a forked child."""
        return self._pid != os.getpid()

    def start(self) -> None:
        """Begins to look for the daemon."""
        self._keeper.start()

    def stop(self, timeout: float) -> None:
        """Lets go of everything: pins, memory, slot. What takes longer than `timeout` seconds goes on by itself."""
        self._keeper.stop(timeout)

    def drop(self) -> None:
        """What stop() does, for a client that is gone: waits for nothing, and does nothing in a forked child."""
        if not self.foreign:
            self._keeper.stop_soon()

    def disown(self) -> None:
        """For a forked child: closes what it inherited, its parent goes on."""
        self._keeper.disown()

    def wait_attachment(self, timeout: float) -> LinkedSession | None:
        """Waits for the attachment while a daemon's socket answers, at most `timeout` seconds; else not at all.

        One call waits for a daemon that hangs, not each.
        """
        if self.attachment is None and not self._hangs and timeout > 0 and not self._known.wait(timeout):
            self._hangs = True
        return self.attachment

    def greeting(self) -> Attach:
        """The same token each time, so that the daemon gives back the same slot."""
        return Attach(BUILD, self._token, self._name, np.array(list(self._held), dtype="<u8").tobytes())

    def meets(self) -> None:
        """A daemon's socket answers: calls with a timeout wait for what comes of it."""
        self._known.clear()

    def take_up(self, link: Link, greeting: Greeting) -> None:
        """The daemon has answered: the old session goes on if it is about the same segments."""
        try:
            session = self._session_for(greeting)
        except ShmError as error:
            raise RefusedError(str(error)) from error
        except (OSError, MemoryError) as error:
            raise RefusedError(_why_not_mapped(greeting, error)) from error
        finally:
            for descriptor in greeting.descriptors:
                os.close(descriptor)
        self.attachment = LinkedSession(link, session, self._held)
        self._hangs = False
        self.attached.set()
        self._known.set()

    def pump(self, link: Link) -> None:
        """Reads what nobody waits for."""
        self.requests.pump(link)

    def lost(self) -> None:
        """The link is gone. A daemon that stopped on purpose wants its memory back."""
        self.attached.clear()
        self.attachment = None
        self.requests.lost()
        point("client.lost")

    def rests(self) -> bool:
        """No daemon for now. What a dead one left may have been given back meanwhile, and be wanted back.

        Returns False if it was: then there is no slot either.
        """
        self._known.set()
        session = self.session
        if session is None or not session.closed:
            return True
        self.session = None
        self.arenas.look()
        _let_go(session)
        point("client.let_go")
        return False

    def leave(self) -> bool:
        """Lets go of everything. False where no slot can be given back.

        The segments have ended with all slots, or a copy goes on for too long: then the end of the process frees it.
        """
        session, self.session = self.session, None
        self.attached.clear()
        self.attachment = None
        self._known.set()
        self.requests.lost()
        self.arenas.look()
        point("client.leaving")
        return session is None or (not session.closed and _retire(session))

    def _session_for(self, greeting: Greeting) -> Session:
        old, welcome = self.session, greeting.welcome
        if old is not None and (old.segments_id, old.slot) == (welcome.segments_id, welcome.slot):
            return old
        index, locks, arena = greeting.descriptors
        session = Session(index, locks, arena, welcome.slot)
        point("client.mapped")
        self._held = set()  # serials of other segments mean nothing here
        self.session = session
        if old is not None and old.segments_id != welcome.segments_id:
            _let_go(old)
        if welcome.populated:
            self._populate_soon(session)
        return session

    def _populate_soon(self, session: Session) -> None:
        try:
            threading.Thread(target=self._populate, args=(session,), name="pagetier-populate", daemon=True).start()
        except RuntimeError as error:  # as where the address space has no room for its stack
            log.debug("the arena is mapped as it is used: %s", error)

    def _populate(self, session: Session) -> None:
        """Maps all memory ahead of its use, so that no match and no copy has to wait for page faults."""
        with contextlib.suppress(OSError):
            session.populate_index()
        for offset in range(0, session.arena_bytes, _CHUNK):
            if self.session is not session:
                return
            try:
                session.populate(offset, min(_CHUNK, session.arena_bytes - offset))
            except (OSError, ValueError) as error:
                log.debug("the arena is mapped as it is used: %s", error)
                return


def _let_go(session: Session) -> None:
    """Ends a session in which nothing new is matched, behind its copies, whatever still refers to it; never waits."""
    if not session.retire():
        threading.Thread(target=_retire_some_time, args=(session,), name="pagetier-retire", daemon=True).start()


def _retire_some_time(session: Session) -> None:
    pause = _RETIRE_PAUSE_S
    while not session.retire():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_RETIRE_PAUSE_S)


def _retire(session: Session) -> bool:
    """Ends the session once no thread copies or matches any more; False if that takes too long."""
    ends = time.monotonic() + _RETIRE_S
    while not session.retire():
        if time.monotonic() > ends:
            return False
        time.sleep(_RETIRE_PAUSE_S)
    return True


def _why_not_mapped(greeting: Greeting, error: OSError | MemoryError) -> str:
    """Names the limit on the address space where there is one: the usual reason, and one that can be changed."""
    nbytes = sum(os.fstat(descriptor).st_size for descriptor in greeting.descriptors)
    why = getattr(error, "strerror", None) or "no memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        why += f"; the address space of this process is limited to {limit / _GIB:.1f} GiB (RLIMIT_AS, ulimit -v)"
    return f"cannot map the daemon's segments of {nbytes / _GIB:.1f} GiB: {why}"


def shown_name(name: str) -> str:
    """The name, or that of the program; without what can not be shown. It may hold anything, also what has no UTF-8."""
    return "".join(letter if letter.isprintable() else "?" for letter in name or _program())


def _program() -> str:
    return Path((sys.argv or [""])[0] or sys.executable).name
