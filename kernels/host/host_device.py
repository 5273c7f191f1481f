"""The host as a device, for engines whose cache is in host memory: a stream is a thread that runs the host path."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

from pagetier.kernels.device import Copy, DeviceError, Direction, EngineEvent, Event, event_of
from pagetier.kernels.host.copy import gather, scatter
from pagetier.shm.clock import Deadline
from pagetier.shm.safe_event import SafeEvent

_CHECK_EVERY_S = 0.1  # seconds between two checks whether a wait for an engine's event is still needed

_Task: TypeAlias = "Callable[[], object]"


class HostEvent:
    """A point in a HostStream; implements Event."""

    def __init__(self) -> None:
        self._came = SafeEvent()
        self._error = ""

    def done(self) -> bool:
        """Returns whether the event has completed. Raises DeviceError if work before it failed."""
        return self._came.is_set() and self._sound()

    def wait(self, seconds: float) -> bool:
        """Waits until the event has completed; returns False after `seconds`. Raises DeviceError as done() does."""
        return self._came.wait(seconds) and self._sound()

    def make_stream_wait(self, stream: object) -> None:
        """Orders later work of a stream behind this event; on an Executor also if work before the event failed.

        Args:
            stream: A HostStream, or an Executor with one thread, which then blocks.

        Raises:
            ValueError: `stream` is neither.
        """
        if isinstance(stream, HostStream):
            stream.after(self)
        elif isinstance(stream, Executor):
            stream.submit(self._came.wait)
        else:
            raise ValueError(
                f"{type(stream).__name__} is not a stream of the host: expected a HostStream or an Executor"
            )

    def come(self, error: str) -> None:
        """Completes the event, with the error of the work before it if there was one. For the stream's thread."""
        self._error = error
        self._came.set()

    def _sound(self) -> bool:
        if self._error:
            raise DeviceError(self._error)
        return True


class _StreamThread:
    """The thread of a stream. It has no reference to the stream, so that dropping the stream ends the thread."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task | HostEvent | None] = SimpleQueue()
        self.error = ""
        self.after_event: Callable[[Event], object] | None = None
        self.leaving = SafeEvent()
        self.ended = SafeEvent()

    def run(self) -> None:
        while (task := self.tasks.get()) is not None:
            if isinstance(task, HostEvent):
                task.come(self.error)
                if self.after_event is not None:
                    self.after_event(task)
            elif not self.error:
                self._do(task)
        self.ended.set()

    def _do(self, task: _Task) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - an engine's wait() may raise anything; all wait for this thread
            self.error = f"a copy failed: {_words(error)}"

    def leave(self) -> None:
        self.leaving.set()
        self.tasks.put(None)

    def wait_for(self, after: object) -> None:
        """Waits for the engine's event.

        A failure of the engine's work fails the EngineEvent or, without one, the stream: its output must not be read.

        Raises:
            DeviceError: The engine's work failed, or the stream was closed.
        """
        while not (_is_over(after) if isinstance(after, EngineEvent) else _has_come(after)):
            if self.leaving.is_set():
                raise DeviceError("the stream was closed before the engine's event came")


class HostStream:
    """Copies in one direction, in order, on a thread of its own; implements Stream. Created by HostDevice.stream()."""

    def __init__(self, direction: Direction, threads: int) -> None:
        self._threads = threads
        self._gate: EngineEvent | None = None
        self._worker = worker = _StreamThread()
        name = f"pagetier-{direction.value}-stream"
        threading.Thread(target=worker.run, name=name, daemon=True).start()
        weakref.finalize(self, worker.leave).atexit = False

    def after(self, event: object) -> None:
        """Makes the stream's thread wait for a threading.Event, a Future, a HostEvent or any object with wait().

        A Future that failed or was cancelled, and a wait() that raises, fail the EngineEvent or, where there is
        none, the stream.
        Raises DeviceError if the stream failed, and ValueError for an object without wait().
        """
        _require_event(event_of(event))
        self._gate = event if isinstance(event, EngineEvent) else None
        self._put(partial(self._worker.wait_for, event))

    def enqueue(self, copy: Copy) -> None:
        """Starts a copy and returns at once.

        Raises DeviceError, and ValueError for a cache that is not in host memory.
        """
        copy.transfer.require_host()
        gate = self._gate
        run = partial(_run, copy, self._threads)
        self._put(partial(_run_after, gate, run) if gate is not None and gate.transfer is copy.transfer else run)

    def record(self) -> HostEvent:
        """Returns the point after everything that was enqueued so far. Raises DeviceError."""
        event = HostEvent()
        self._put(event)
        return event

    def call_after_events(self, call: Callable[[Event], object]) -> bool:
        """Implements Stream.call_after_events(). The stream's thread calls it."""
        self._worker.after_event = call
        return True

    def close(self, timeout: float) -> bool:
        """Stops taking work. Returns whether the thread has finished its work and ended within the timeout."""
        self._worker.leave()
        return self._worker.ended.wait(timeout)

    def _put(self, task: _Task | HostEvent) -> None:
        if self._worker.error:
            raise DeviceError(self._worker.error)
        if self._worker.leaving.is_set():
            raise DeviceError("the device was closed")
        self._worker.tasks.put(task)


class HostDevice:
    """Copies by the C host path, one thread a stream; implements Device.

    A large copy runs on up to `threads` threads.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._streams: weakref.WeakSet[HostStream] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The torch name of the device."""
        return "cpu"

    def stream(self, direction: Direction) -> HostStream:
        """Returns a new stream for copies in one direction."""
        stream = HostStream(direction, self._threads)
        self._streams.add(stream)
        return stream

    def engine_event(self) -> None:
        """Implements Device.engine_event(): what an engine has called on the host has ended."""

    def require_event(self, event: object) -> None:
        """Implements Device.require_event(); HostStream.after() lists the types."""
        _require_event(event)

    def close(self, timeout: float = 0.0) -> bool:
        """Stops all streams. Returns whether all of them finished their work and ended within the timeout."""
        deadline = Deadline(timeout)
        ended = [stream.close(deadline.left) for stream in list(self._streams)]
        return all(ended)


def _run(copy: Copy, threads: int) -> None:
    work = gather if copy.direction is Direction.STORE else scatter
    work(copy.transfer, copy.frames, threads, copy.planes)


def _run_after(gate: EngineEvent, run: _Task) -> None:
    if not gate.reason:
        run()


def _require_event(event: object) -> None:
    wait = getattr(event, "wait", None)
    if not isinstance(event, Future) and not callable(wait):
        raise ValueError(f"{type(event).__name__} has no wait() method")
    if inspect.iscoroutinefunction(wait):
        raise ValueError(f"the wait() method of {type(event).__name__} is a coroutine: a thread cannot wait for it")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _is_over(gate: EngineEvent) -> bool:
    """Returns whether the event inside is over, after waiting a little.

    Fails the EngineEvent if the work before its event failed.
    """
    try:
        return _has_come(gate.event)
    except Exception as error:  # noqa: BLE001 - whatever an engine's wait() raises
        gate.lose(f"the engine's event failed: {_words(error)}")
        return True


def _has_come(event: object) -> bool:
    """Waits a little and returns whether the event has completed. Raises if the work before it failed."""
    if isinstance(event, Future):
        wait_for([event], _CHECK_EVERY_S)
        # A Future that failed is done, too, but what the engine wrote before it must not be read.
        if event.done() and (event.cancelled() or event.exception() is not None):
            raise DeviceError("the engine's work failed")
        return event.done()
    if isinstance(event, (threading.Event, HostEvent)):
        return event.wait(_CHECK_EVERY_S)
    # An object of the engine waits without a limit, so that after its wait() it has come.
    if inspect.isawaitable(event.wait()):  # type: ignore[attr-defined]
        raise DeviceError(f"the wait() method of {type(event).__name__} returned an awaitable instead of waiting")
    return True
