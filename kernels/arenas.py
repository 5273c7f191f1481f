"""Arenas pinned for a GPU: that of the session in use, and the next one when a daemon brings other segments."""

from __future__ import annotations

import threading

import msgspec

from ..shm._core import Session
from .frames import Frames
from .pinning import Pinning, Registering, Unregistering


class _Pinned(msgspec.Struct, frozen=True, eq=False):
    session: Session
    pinning: Pinning

    def end(self) -> None:
        """Takes as long as the driver does. What it can not let go of stays mapped until the process ends."""
        if self.pinning.close():
            self.session.unhold()


class PinnedArenas:
    """Pins the arena of whatever session copies are about, and holds the session meanwhile. From any thread.

    One at a time: when copies are about another session, the one before is let go of in the background. Its copies have
    ended: a session is replaced only when its segments are gone.
    """

    def __init__(self, register: Registering, unregister: Unregistering) -> None:
        self._register, self._unregister = register, unregister
        self._one_by_one = threading.Lock()
        self._current: _Pinned | None = None
        self._ending: list[threading.Thread] = []
        self._closed = False

    def ready(self, frames: Frames) -> bool:
        """Whether all of these frames are pinned by now; their arena's owner is a session. Never waits."""
        current = self._current
        if current is None or current.session is not frames.arena.owner:
            current = self._begin(frames.arena.owner)
        return current is not None and current.pinning.ready_frames(frames)

    def begin(self, session: Session) -> None:
        """Begins to pin the arena of a session before the first copy asks for it."""
        self._begin(session)

    @property
    def state(self) -> str:
        """How far it is, in words for people."""
        current = self._current
        return current.pinning.state if current is not None else "nothing is pinned"

    def close(self) -> None:
        """Unpins everything. No copy is in flight any more, and none is begun."""
        with self._one_by_one:
            self._closed = True
            self._replace(None)
            ending, self._ending = self._ending, []
        for thread in ending:
            thread.join()

    def _begin(self, session: object) -> _Pinned | None:
        if not isinstance(session, Session):
            return None
        with self._one_by_one:
            current = self._current
            if not self._closed and (current is None or current.session is not session):
                self._replace(session)
            return self._current

    def _replace(self, session: Session | None) -> None:
        before, self._current = self._current, None
        if before is not None:
            self._ending = [thread for thread in self._ending if thread.is_alive()]
            self._ending.append(threading.Thread(target=before.end, name="pagetier-unpinning"))
            self._ending[-1].start()
        if session is not None and session.usable:
            session.hold()
            address, nbytes = session.arena_address, session.arena_bytes
            self._current = _Pinned(session, Pinning(address, nbytes, self._register, self._unregister))
