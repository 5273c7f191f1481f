"""The life of a client: attaching to the daemon, forks of the process, and closing."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pagetier.client.attachment import Attachment, display_name
from pagetier.client.misuse import MisuseLog, require_timeout
from pagetier.client.reconnect import LinkEvent, log_event
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas
from pagetier.shm._core import Session
from pagetier.shm.socket_path import default_socket

_COPY_THREADS = 4
_LONGEST_S = 1e6  # the daemon is not asked to wait for ever


class AttachedClient:
    """A client that is attached to the daemon, or tries to attach: the base class of Client, which has the arguments.

    Attributes:
        timeout: Seconds that a call may wait if the call itself has no `timeout`.
        threads: The number of threads that a large copy may use, the calling thread included.
        misuse: Logs wrong use where an exception could end an engine's forward pass.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 1.0,
        name: str = "",
        threads: int = 0,
        on_link: Callable[[LinkEvent], None] = log_event,
    ) -> None:
        require_timeout(timeout)
        self.timeout = timeout
        # A Path keeps its type, since the owner of a DefaultSocket is validated at each attempt to connect.
        self._socket = socket if socket is None or isinstance(socket, Path) else Path(socket)
        self._name, self._on_link = display_name(name), on_link
        self.threads = threads or min(_COPY_THREADS, len(os.sched_getaffinity(0)))
        self._closed = False
        self.misuse = MisuseLog()
        self._attachments: dict[int, Attachment] = {}
        self._attachment = self._attach()

    @property
    def attached(self) -> bool:
        """Whether the client is attached to a daemon now.

        Without a daemon, pages that are already mapped are still matched and loaded, but stores are rejected.
        """
        return self._own_attachment().attached.is_set()

    @property
    def session(self) -> Session | None:
        """The mapped segments, for code that copies pages on its own.

        None until the client has attached for the first time, after close(), and after the daemon has released its
        memory. The object changes when a daemon comes with other segments.
        """
        return self._own_attachment().session

    @property
    def arenas(self) -> PinnedArenas:
        """The memory of the arena that this process has registered with GPU drivers, shared by all of its copiers."""
        return self._own_attachment().arenas

    def wait_attached(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until the client is attached, and returns whether it is."""
        return self._own_attachment().attached.wait(timeout)

    def close(self) -> None:
        """Releases all pins, the mapped memory and the slot. May be called again.

        Afterwards every match is a miss, matches made before can no longer be loaded, and stores are rejected. The call
        waits for running copies, at most the client's timeout; if they take longer, the memory is released when they
        end. If no daemon answers, a thread of this process returns the slot as soon as one does.

        A client that is garbage collected is closed too, without waiting. Closing a client in a forked child does not
        affect the parent.
        """
        self._closed = True
        if not self._attachment.foreign:
            self._attachment.stop(self._seconds(None))

    def _seconds(self, timeout: float | None) -> float:
        """Returns the seconds that a call with this `timeout` may wait."""
        return min(max(0.0, self.timeout if timeout is None else timeout), _LONGEST_S)

    def _attach(self) -> Attachment:
        """Returns the attachment of this process. Threads that call this at the same time get the same one."""
        socket = self._socket
        fresh = Attachment(lambda: socket or default_socket(), self._name, self._on_link)
        attachment = self._attachments.setdefault(os.getpid(), fresh)
        if attachment is fresh:
            weakref.finalize(self, attachment.drop).atexit = False
            try:
                attachment.start()
            except BaseException:
                attachment.drop()  # an interrupt: no caller has the client to close
                raise
        return attachment

    def _own_attachment(self) -> Attachment:
        """Returns the attachment of this process; the first call in a forked child makes one for the child."""
        attachment = self._attachment
        if attachment.foreign and not self._closed:
            self._attachment = self._attach()
            attachment.disown()
        return self._attachment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        path = self._socket or default_socket()
        session = self._attachment.session
        state = "closed" if self._closed else "attached" if self.attached else "without a daemon"
        memory = f", slot {session.slot} of {session.arena_bytes / 2**30:.1f} GiB" if session is not None else ""
        return f"<{type(self).__name__} {state}, {path}{memory}>"
