"""The arenas that are pinned for GPUs: the current session's, while a copier claims it or copies are in flight."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from pagetier.kernels.device import Copy, Device, DeviceError, Direction, Event, Stream
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.pinning.pinning import Pinning, Registering, Unregistering
from pagetier.shm._core import Session
from pagetier.shm.safe_event import SafeCondition

_CHECK_EVERY_S: Final = 1.0  # seconds between two checks whether the session is still the current one
_LANDING_S: Final = 0.02  # seconds between two checks whether the copies of an arena that is to be unpinned have ended


class _Pinned:
    """A pinned arena; its session stays mapped until end(). All methods but end() need the arenas' lock.

    `last` has for each stream the last event behind its copies; None means that copies were enqueued and no event was
    recorded yet.
    """

    def __init__(self, session: Session, register: Registering, unregister: Unregistering) -> None:
        self.session, self.ending = session, False
        self.pinning = Pinning(session.arena_address, session.arena_bytes, register, unregister)
        self.last: dict[object, Event | None] = {}

    def forget_completed(self) -> bool:
        """Forgets the copies that have completed: a stream is in order, so its last event covers all earlier copies.

        Returns:
            Whether one may still access the arena.
        """
        self.last = {stream: event for stream, event in self.last.items() if event is None or not _came(event)}
        return bool(self.last)

    def end(self) -> None:
        """Unpins the arena, which can take long.

        Memory that the driver cannot unpin stays mapped until the process ends.
        """
        if self.pinning.close():
            self.session.release_arena()


class PinnedArenas:
    """The arenas that the copiers of one client pin together, since memory is pinned once a process. Thread-safe.

    Only the current session's arena is pinned, and only while a copier has a claim. An arena that is no longer current,
    or that no copier claims, is unpinned in the background once no copy of it is in flight; after a device error it is
    never unpinned. Unusable in a forked child.
    """

    def __init__(self, current: Callable[[], Session | None]) -> None:
        """Starts without pinning anything.

        Args:
            current: Returns the session that new copies use. A session that was replaced never becomes current again.
        """
        self._current = current
        self._pid = os.getpid()
        self._changed = SafeCondition()
        self._lock = self._changed.lock
        self._pinned: dict[Session, _Pinned] = {}
        self._claims: weakref.WeakSet[PinningClaim] = weakref.WeakSet()
        self._watching = False

    def claim(self, register: Registering, unregister: Unregistering) -> PinningClaim:
        """Returns a copier's claim. The two functions pin and unpin the memory that is first pinned for it."""
        claim = PinningClaim(self, register, unregister)
        with self._lock:
            self._claims.add(claim)
        return claim

    def check_session(self) -> None:
        """Checks at once whether the current session has changed, instead of within the next second."""
        if self._pid == os.getpid():
            with self._lock:
                self._changed.wake_all()

    @property
    def state(self) -> str:
        """The progress of pinning the current session's arena, as text for people."""
        pinned = self._of(self._current())
        return pinned.pinning.state if pinned is not None else "nothing is pinned"

    @property
    def progress(self) -> float:
        """The pinned share of the current session's arena, from 0 to 1."""
        pinned = self._of(self._current())
        return pinned.pinning.progress if pinned is not None else 0.0

    # --- for claims -----------------------------------------------------------------------------------------------

    def ready(self, frames: Frames) -> bool:
        """Implements PinningClaim.ready()."""
        pinned = self._of(frames.arena.owner)
        return pinned is not None and pinned.pinning.ready_frames(frames)

    def begin(self, session: object, claim: PinningClaim) -> _Pinned | None:
        """Returns a session's pinned arena, starting to pin it if that is allowed; None if it is not."""
        with self._lock:
            pinned = self._of(session)
            if pinned is None and isinstance(session, Session) and claim in self._claims and self._wanted(session):
                pinned = self._pin(session, claim)
            return pinned

    def enqueuing(self, copy: Copy, stream: object, claim: PinningClaim) -> _Pinned | None:
        """Marks the arena of a copy as in use before the copy is enqueued.

        Returns:
            The pinned arena, or None if it is not pinned.

        Raises:
            ValueError: The arena is being unpinned. Even a pageable copy could then access memory while it is unpinned.
        """
        with self._lock:
            pinned = self.begin(copy.frames.arena.owner, claim)
            if pinned is not None and pinned.ending:
                raise ValueError("the arena is being unpinned")
            if pinned is not None:
                pinned.last[stream] = None  # before the copy: from here on the arena stays pinned until an event comes
            return pinned

    def recorded(self, pinned: _Pinned, stream: object, event: Event) -> None:
        """Records the event that completes when everything enqueued in a stream has ended."""
        with self._lock:
            pinned.last[stream] = event

    def end(self, claim: PinningClaim, timeout: float) -> bool:
        """Implements PinningClaim.end()."""
        with self._lock:
            self._claims.discard(claim)
            self._changed.wake_all()
            return self._changed.wait_for(lambda: bool(self._claims) or not self._pinned, max(0.0, timeout))

    def _pin(self, session: Session, claim: PinningClaim) -> _Pinned | None:
        session.retain_arena()  # before the check: a session that is retired after it stays mapped
        if not session.usable:
            session.release_arena()
            return None
        pinned = self._pinned[session] = _Pinned(session, claim.register, claim.unregister)
        self._watch()
        return pinned

    def _of(self, session: object) -> _Pinned | None:
        return self._pinned.get(session) if isinstance(session, Session) else None

    def _wanted(self, session: Session) -> bool:
        return bool(self._claims) and session is self._current() and session.usable and not session.closed

    # --- in the thread --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._run, name="pagetier-arenas", daemon=True).start()

    def _run(self) -> None:
        """Runs the unpinning thread. It keeps no reference to a session while it waits, which would keep it mapped."""
        while self._unpin_next():
            pass

    def _unpin_next(self) -> bool:
        pinned = self._next()
        if pinned is None:
            return False
        pinned.end()  # without the lock: it takes seconds, and other arenas can be pinned at the same time
        with self._lock:
            del self._pinned[pinned.session]
            self._changed.wake_all()
        return True

    def _next(self) -> _Pinned | None:
        """Waits for the next arena to unpin and returns it; None when nothing is pinned any more."""
        with self._lock:
            while self._pinned:
                unwanted = self._unwanted()
                idle = next((pinned for pinned in unwanted if not pinned.forget_completed()), None)
                if idle is not None:
                    idle.ending = True  # under the lock, so that no copy is enqueued between this and the unpinning
                    return idle
                self._changed.wait(_LANDING_S if unwanted else _CHECK_EVERY_S)
            self._watching = False
            return None

    def _unwanted(self) -> list[_Pinned]:
        return [pinned for pinned in self._pinned.values() if not self._wanted(pinned.session)]


class PinningClaim:
    """A copier's claim on pinned arenas, until end() or until it is dropped (its streams refer to it)."""

    def __init__(self, arenas: PinnedArenas, register: Registering, unregister: Unregistering) -> None:
        """Created by PinnedArenas.claim()."""
        self.register, self.unregister = register, unregister
        self._arenas = arenas

    def ready(self, frames: Frames) -> bool:
        """Returns whether all of these frames are pinned now, without waiting. Their arena's owner is a session."""
        return self._arenas.ready(frames)

    def begin(self, session: Session) -> None:
        """Starts to pin a session's arena before the first copy, if it is the current session."""
        self._arenas.begin(session, self)

    def watched(self, device: Device) -> Device:
        """Returns a device whose streams pin the arena of each copy and keep it pinned until the copy has ended.

        Enqueuing a copy of an arena that is being unpinned raises ValueError.
        """
        return _WatchedDevice(device, self._arenas, self)

    def end(self, timeout: float) -> bool:
        """Ends the claim: no more copies are enqueued. Unpinning continues in the background. May be called again.

        Returns:
            False if this was the last claim and something is still pinned after the timeout.
        """
        return self._arenas.end(self, timeout)


class _WatchedDevice:
    """The device that PinningClaim.watched() returns."""

    def __init__(self, device: Device, arenas: PinnedArenas, claim: PinningClaim) -> None:
        self._device, self._arenas, self._claim = device, arenas, claim

    @property
    def name(self) -> str:
        return self._device.name

    def stream(self, direction: Direction) -> Stream:
        return _WatchedStream(self._device.stream(direction), self._arenas, self._claim)

    def engine_event(self) -> object | None:
        return self._device.engine_event()

    def require_event(self, event: object) -> None:
        self._device.require_event(event)


class _WatchedStream:
    """A stream of the device that PinningClaim.watched() returns. Not thread-safe, like every stream."""

    def __init__(self, stream: Stream, arenas: PinnedArenas, claim: PinningClaim) -> None:
        self._stream, self._arenas, self._claim = stream, arenas, claim
        self._name = object()  # the arenas keep this and not the stream, which must end with its queue
        self._used: set[_Pinned] = set()

    def after(self, event: object) -> None:
        self._stream.after(event)

    def enqueue(self, copy: Copy) -> None:
        pinned = self._arenas.enqueuing(copy, self._name, self._claim)
        if pinned is not None:
            self._used.add(pinned)
        self._stream.enqueue(copy)

    def record(self) -> Event:
        event = self._stream.record()
        while self._used:
            self._arenas.recorded(self._used.pop(), self._name, event)
        return event

    def call_after_events(self, call: Callable[[Event], object]) -> bool:
        return self._stream.call_after_events(call)


def _came(event: Event) -> bool:
    """Returns whether the event has completed. After a device error it never has: copies in flight may still happen."""
    try:
        return event.done()
    except DeviceError:
        return False
