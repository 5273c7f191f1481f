"""Arenas pinned for GPUs: that of the session in use, for as long as a copier wants it and copies are in flight."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from ..shm._core import Session
from .device import Copy, Device, DeviceError, Direction, Event, Stream
from .frames import Frames
from .pinning import Pinning, Registering, Unregistering

_LOOK_S: Final = 1.0  # how often it is looked whether the session is still the current one
_LANDING_S: Final = 0.02  # how often, whether the copies have ended of an arena that is to be let go of


class _Pinned:
    """An arena that is pinned; its session is held, which end() ends. All but end() with the arenas' lock held.

    last: of each stream, the last event behind its copies; None: some were enqueued, and nothing was recorded yet.
    """

    def __init__(self, session: Session, register: Registering, unregister: Unregistering) -> None:
        self.session, self.ending = session, False
        self.pinning = Pinning(session.arena_address, session.arena_bytes, register, unregister)
        self.last: dict[object, Event | None] = {}

    @property
    def in_flight(self) -> bool:
        """Whether a copy may touch it. A stream is in order, so that its last event stands for all before."""
        self.last = {stream: event for stream, event in self.last.items() if event is None or not _came(event)}
        return bool(self.last)

    def end(self) -> None:
        """Takes as long as the driver does. What it can not let go of stays mapped until the process ends."""
        if self.pinning.close():
            self.session.unhold()


class PinnedArenas:
    """The arenas that the copiers of one client pin together, as memory is pinned once a process. From any thread.

    Only the current session's arena is ever begun, and only while a copier has a lease. One that is not current any
    more, or that nobody leases, is unpinned in the background as soon as no copy of it is in flight; if the device
    failed under one, never. Of no use in a forked child.
    """

    def __init__(self, current: Callable[[], Session | None]) -> None:
        """current: the session that new copies are about; one that was replaced never comes again."""
        self._current = current
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._pinned: dict[Session, _Pinned] = {}
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._watching = False

    def lease(self, register: Registering, unregister: Unregistering) -> Lease:
        """A copier's share. The functions are used for what is begun to be pinned for it, and unpin that again."""
        lease = Lease(self, register, unregister)
        with self._changed:
            self._leases.add(lease)
        return lease

    def look(self) -> None:
        """The current session may be another one: looks now, not only some time within the next second."""
        if self._pid == os.getpid():
            with self._changed:
                self._changed.notify_all()

    @property
    def state(self) -> str:
        """How far the current session's arena is, in words for people."""
        pinned = self._of(self._current())
        return pinned.pinning.state if pinned is not None else "nothing is pinned"

    @property
    def progress(self) -> float:
        """Which share of the current session's arena is pinned, from 0 to 1."""
        pinned = self._of(self._current())
        return pinned.pinning.progress if pinned is not None else 0.0

    # --- for leases -----------------------------------------------------------------------------------------------

    def ready(self, frames: Frames) -> bool:
        """See Lease."""
        pinned = self._of(frames.arena.owner)
        return pinned is not None and pinned.pinning.ready_frames(frames)

    def begin(self, session: object, lease: Lease) -> _Pinned | None:
        """The arena of a session, pinned from now on if it may be; None: it may not."""
        with self._changed:
            pinned = self._of(session)
            if pinned is None and isinstance(session, Session) and lease in self._leases and self._wanted(session):
                pinned = self._pin(session, lease)
            return pinned

    def enqueuing(self, copy: Copy, stream: object, lease: Lease) -> _Pinned | None:
        """A copy is about to be enqueued: from now on its arena is in use. None: it is not pinned.

        Raises ValueError while it is being unpinned: even a copy the pageable way could then be at work on pinned
        memory that is about not to be.
        """
        with self._changed:
            pinned = self.begin(copy.frames.arena.owner, lease)
            if pinned is not None and pinned.ending:
                raise ValueError("the arena is being unpinned")
            if pinned is not None:
                pinned.last[stream] = None
            return pinned

    def recorded(self, pinned: _Pinned, stream: object, event: Event) -> None:
        """The event comes when all that was enqueued in a stream has ended."""
        with self._changed:
            pinned.last[stream] = event

    def end(self, lease: Lease, deadline: float) -> bool:
        """See Lease."""
        with self._changed:
            self._leases.discard(lease)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: bool(self._leases) or not self._pinned, max(0.0, deadline))

    def _pin(self, session: Session, lease: Lease) -> _Pinned | None:
        session.hold()
        if not session.usable:  # it was retired a moment before
            session.unhold()
            return None
        pinned = self._pinned[session] = _Pinned(session, lease.register, lease.unregister)
        self._watch()
        return pinned

    def _of(self, session: object) -> _Pinned | None:
        return self._pinned.get(session) if isinstance(session, Session) else None

    def _wanted(self, session: Session) -> bool:
        return bool(self._leases) and session is self._current() and session.usable and not session.closed

    # --- in the thread --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._run, name="pagetier-arenas", daemon=True).start()

    def _run(self) -> None:
        """Keeps no session over a wait, as that would keep it mapped."""
        while self._let_go_of_next():
            pass

    def _let_go_of_next(self) -> bool:
        pinned = self._next()
        if pinned is None:
            return False
        pinned.end()
        with self._changed:
            del self._pinned[pinned.session]
            self._changed.notify_all()
        return True

    def _next(self) -> _Pinned | None:
        """The next arena to be let go of; None when nothing is pinned any more."""
        with self._changed:
            while self._pinned:
                unwanted = self._unwanted()
                idle = next((pinned for pinned in unwanted if not pinned.in_flight), None)
                if idle is not None:
                    idle.ending = True
                    return idle
                self._changed.wait(_LANDING_S if unwanted else _LOOK_S)
            self._watching = False
            return None

    def _unwanted(self) -> list[_Pinned]:
        return [pinned for pinned in self._pinned.values() if not self._wanted(pinned.session)]


class Lease:
    """A copier's share in pinned arenas: until end(), or until nobody has it any more, its streams among them."""

    def __init__(self, arenas: PinnedArenas, register: Registering, unregister: Unregistering) -> None:
        """Made by PinnedArenas.lease."""
        self.register, self.unregister = register, unregister
        self._arenas = arenas

    def ready(self, frames: Frames) -> bool:
        """Whether all of these frames are pinned by now; their arena's owner is a session. Never waits."""
        return self._arenas.ready(frames)

    def begin(self, session: Session) -> None:
        """Begins to pin a session's arena ahead of the first copy, if it is the current one."""
        self._arenas.begin(session, self)

    def watched(self, device: Device) -> Device:
        """The device, on whose streams each copy begins to pin its arena and keeps it pinned until it has ended.

        A copy of an arena that is just being unpinned is a ValueError.
        """
        return _WatchedDevice(device, self._arenas, self)

    def end(self, deadline: float) -> bool:
        """No copy is begun any more. False if this was the last lease and something is pinned after so many seconds.

        That goes on in the background. May be called again.
        """
        return self._arenas.end(self, deadline)


class _WatchedDevice:
    """See Lease.watched."""

    def __init__(self, device: Device, arenas: PinnedArenas, lease: Lease) -> None:
        self._device, self._arenas, self._lease = device, arenas, lease

    @property
    def name(self) -> str:
        return self._device.name

    def stream(self, direction: Direction) -> Stream:
        return _WatchedStream(self._device.stream(direction), self._arenas, self._lease)

    def require_event(self, event: object) -> None:
        self._device.require_event(event)


class _WatchedStream:
    """See Lease.watched. For one thread at a time, as every stream."""

    def __init__(self, stream: Stream, arenas: PinnedArenas, lease: Lease) -> None:
        self._stream, self._arenas, self._lease = stream, arenas, lease
        self._name = object()  # the arenas remember this and not the stream, which has to end when its lane does
        self._used: set[_Pinned] = set()

    def after(self, event: object) -> None:
        self._stream.after(event)

    def enqueue(self, copy: Copy) -> None:
        pinned = self._arenas.enqueuing(copy, self._name, self._lease)
        if pinned is not None:
            self._used.add(pinned)
        self._stream.enqueue(copy)

    def record(self) -> Event:
        event = self._stream.record()
        while self._used:
            self._arenas.recorded(self._used.pop(), self._name, event)
        return event


def _came(event: Event) -> bool:
    """Never, where the device failed: what was in flight may still happen."""
    try:
        return event.done()
    except DeviceError:
        return False
