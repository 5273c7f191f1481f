"""Calls of a store's library, each on a thread of its own so that its caller can give it up.

No timeout of a library is relied on: some hang for minutes. A call that was given up keeps its thread and its bounce
buffer until it returns. Reads go first: writes wait while a read is late.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.safe_event import SafeCondition, SafeEvent
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.bounce_buffers import BounceBuffer

_T = TypeVar("_T")
MOST_CALLS: Final = 48
LATE_READ_S: Final = 0.1
_MOST_SHOWN: Final = 240  # characters of an error


class LateError(TierError):
    """A call did not return within its timeout."""


class StoreCall(Generic[_T]):
    """A call that has been started.

    Attributes:
        deadline: When it is given up.
    """

    def __init__(
        self,
        function: Callable[[], _T],
        buffer: BounceBuffer | None,
        deadline: Deadline,
        then: Callable[[_T], None] | None = None,
    ) -> None:
        self._function = function
        self._buffer = buffer
        self._then = then
        self._done = SafeEvent()
        self._given_up = False
        self.deadline = deadline
        self._outcome: tuple[_T] | None = None
        self._error: Exception | None = None

    def run(self, returned: Callable[[], None]) -> None:
        """Makes the call unless it has been given up, releases its bounce buffer, and passes on the result.

        `returned` is called before the result is known to anybody: who starts another call then finds this one's place
        free, however long this thread waits for a core.
        """
        try:
            if not self._given_up:
                self._outcome = (_called(self._function),)
        except Exception as error:  # noqa: BLE001  a library may raise anything; the caller gets it
            self._error = error
        if self._buffer is not None:
            self._buffer.release()
        returned()
        self._done.set()
        if self._then is not None and self._outcome is not None:
            self._then(*self._outcome)

    def wait(self) -> bool:
        """Returns whether the call has returned before its deadline. If not, it is given up."""
        self._given_up = not self._done.wait(self.deadline.left)
        return not self._given_up

    def result(self) -> _T:
        """Returns the result of a call that has returned, or raises its error."""
        if self._outcome is None:
            error, self._error = self._error, None  # its traceback refers to this call
            raise error or RuntimeError("the call has not returned")
        return self._outcome[0]


class _CallThread:
    """A thread that makes one call at a time, and calls `idle` with this object after each of them.

    Each thread waits for a lock of its own. If all waited for one queue of Python, each call would wake two of them.
    """

    def __init__(self, name: str, returned: Callable[[], None], idle: Callable[[_CallThread], None]) -> None:
        self._returned = returned
        self._idle = idle
        self._call: StoreCall[Any] | None = None
        self._begun = threading.Lock()
        self._begun.acquire()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def begin(self, call: StoreCall[Any]) -> None:
        """Starts a call. The thread is idle."""
        self._call = call
        self._begun.release()

    def _work(self) -> None:
        while self._begun.acquire():
            call, self._call = self._call, None
            assert call is not None
            call.run(self._returned)
            del call  # it refers to its bounce buffer
            self._idle(self)


class StoreCalls:
    """Runs calls on threads that no exit of the process waits for. Thread-safe.

    Args:
        timeout_s: How long a call may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[_CallThread] = []
        self._threads = self._running = self._late = 0
        self._since = clock.now()

    @property
    def running(self) -> int:
        """The calls that have not returned."""
        return self._running

    @property
    def late(self) -> int:
        """How many calls did not return within their timeout."""
        return self._late

    def silent_s(self) -> float:
        """Returns for how many seconds no call has returned while there were some, 0 if there are none."""
        with self._lock:
            return clock.now() - self._since if self._running else 0.0

    def start(
        self,
        function: Callable[[], _T],
        buffer: BounceBuffer | None = None,
        deadline: Deadline | None = None,
        then: Callable[[_T], None] | None = None,
    ) -> StoreCall[_T]:
        """Starts a call, which retains its bounce buffer.

        Args:
            function: The call.
            buffer: The bounce buffer that it uses.
            deadline: When it is given up; None: after the time that a call may take.
            then: Takes the result on the call's thread, after the call has ended.

        Returns:
            The call, to wait for.

        Raises:
            LateError: Too many calls have not returned.
            TierError: No thread can be started.
        """
        with self._lock:
            if self._running >= MOST_CALLS:
                raise LateError(f"{self._running} calls of the store have not returned")
            thread = self._idle.pop() if self._idle else self._new_thread()
            if not self._running:
                self._since = clock.now()
            self._running += 1
        if buffer is not None:
            buffer.retain()
        call = StoreCall(function, buffer, deadline or Deadline(self.timeout_s), then)
        thread.begin(call)
        return call

    def finish(self, call: StoreCall[_T]) -> _T:
        """Waits for a call and returns its result, or raises its error. Raises LateError if the call was given up."""
        if not call.wait():
            with self._lock:
                self._late += 1
            raise LateError(f"the store did not answer within {self.timeout_s:g} s")
        return call.result()

    def run(
        self, function: Callable[[], _T], buffer: BounceBuffer | None = None, deadline: Deadline | None = None
    ) -> _T:
        """Makes a call and waits for it. Raises LateError if it was given up, or the call's error."""
        return self.finish(self.start(function, buffer, deadline))

    def finish_or_repeat(
        self, call: StoreCall[_T], function: Callable[[], _T], buffer: BounceBuffer | None = None
    ) -> _T:
        """Returns the result of a call, which is repeated once if half of its time is left. Raises TierError."""
        try:
            return self.finish(call)
        except LateError:
            raise
        except Exception as error:
            if not self.has_half(call.deadline):
                raise _failure(error) from error
        return _converted(lambda: self.run(function, buffer, call.deadline))

    def twice(self, function: Callable[[], _T], deadline: Deadline) -> _T:
        """Returns the result of a function, called on this thread and repeated as a call. Raises TierError."""
        try:
            return _called(function)
        except Exception as error:
            if not self.has_half(deadline):
                raise _failure(error) from error
        return _converted(lambda: _called(function))

    def has_half(self, deadline: Deadline) -> bool:
        """Returns whether at least half of the time that a call may take is left, enough to repeat it."""
        return deadline.left >= self.timeout_s / 2

    def _new_thread(self) -> _CallThread:
        try:
            thread = _CallThread(f"pagetier-store-{self._threads}", self._returned, self._keep)
        except RuntimeError as error:
            raise TierError(f"no thread for a call of the store: {error}") from error
        self._threads += 1
        return thread

    def _returned(self) -> None:
        with self._lock:
            self._running -= 1
            self._since = clock.now()

    def _keep(self, thread: _CallThread) -> None:
        with self._lock:
            self._idle.append(thread)


class LateReads:
    """Knows the reads that are running, so that writes wait while one is late. Thread-safe.

    An engine waits for a read, and nothing waits for a write.
    """

    def __init__(self) -> None:
        self._changed = SafeCondition()
        self._began: dict[int, float] = {}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Counts a read for the time of a block; at most one a thread."""
        me = threading.get_ident()
        with self._changed.lock:
            self._began[me] = clock.now()
        try:
            yield
        finally:
            with self._changed.lock:
                del self._began[me]
                self._changed.wake_all()

    def wait(self, most: float) -> None:
        """Returns when no read has been running for LATE_READ_S, or after `most` seconds."""
        with self._changed.lock:
            self._changed.wait_for(lambda: not self._is_late(), most)

    def _is_late(self) -> bool:
        return any(clock.now() - began > LATE_READ_S for began in self._began.values())


def _converted(function: Callable[[], _T]) -> _T:
    """Calls a function, and turns any error into a TierError of one line."""
    try:
        return function()
    except TierError:
        raise
    except Exception as error:
        raise _failure(error) from error


def _called(function: Callable[[], _T]) -> _T:
    """Calls a library, whose errors are all failures of the store: a panic of a Rust library is no Exception."""
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        raise _failure(error) from error


def _failure(error: BaseException) -> TierError:
    return TierError(f"the store failed: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """Returns the first line of an error; of a long one the begin and the end, where libraries have the cause."""
    line = f"{type(error).__name__}: {error}".split("\n")[0].rstrip()
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN // 3]} ... {line[-_MOST_SHOWN * 2 // 3 :]}"
