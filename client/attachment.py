"""The attachment of one process, as requests and copies use it: its session with the segments and its connection."""

from __future__ import annotations

import os
from typing import Protocol

import msgspec

from pagetier.client.arguments import WaitingClient
from pagetier.client.rpc import Requests
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas
from pagetier.shm._core import Session
from pagetier.shm.daemon_link import Link
from pagetier.shm.safe_event import SafeEvent


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
    """The attachment of a client in one process, for those that use it; a forked child needs its own. Thread-safe.

    It is changed by OwnAttachment only, which the client keeps to itself.

    Attributes:
        session: The mapped segments. None until they are mapped, and again after a daemon released its memory in an
            orderly stop; the session then ends with the last running copy, even if matches still refer to it. It
            outlives the connection: without a daemon, mapped pages can still be matched and loaded.
        linked: The connection with its session; None without a daemon.
        pid: The process; a forked child may see the attachment of its parent.
        requests: The requests that are open.
        arenas: The memory that this process has registered with GPU drivers.
        attached: Set while there is a connection.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.linked: LinkedSession | None = None
        self.requests = Requests()
        self.arenas = PinnedArenas(lambda: self.session)
        self.attached = SafeEvent()
        self.pid = os.getpid()
        # Cleared while a daemon has accepted a connection and has not answered the attach request.
        self._settled = SafeEvent()
        # A call waited in vain for a daemon that accepted a connection: other calls do not wait until it is attached.
        self._hangs = False

    def wait_linked(self, timeout: float) -> LinkedSession | None:
        """Returns the connection, waiting at most `timeout` seconds if a daemon has accepted one but not answered yet.

        Returns None without one. Only one call waits for a daemon that hangs.
        """
        if self.linked is None and not self._hangs and timeout > 0 and not self._settled.wait(timeout):
            self._hangs = True
        return self.linked


class AttachedClient(WaitingClient, Protocol):
    """The part of a Client that requests and background copies use."""

    threads: int

    @property
    def attachment(self) -> Attachment:
        """See Client.attachment."""

    @property
    def session(self) -> Session | None:
        """See Client.session."""
