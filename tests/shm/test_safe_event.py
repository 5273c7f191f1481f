"""Tests of an event that interrupts do not leave locked."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum
from itertools import product
from unittest import mock

import pytest

from eventually import PATIENCE_S, eventually
from interrupted_calls import Interrupt, each_interrupt
from pagetier.shm.safe_event import SafeCondition, SafeEvent
from virtual_clock import VirtualClock

INTERRUPTS = 500


@contextmanager
def set_once_awaited(event: SafeEvent) -> Iterator[None]:
    """Sets the event when a thread waits for it, as the block has to do."""

    def set_it() -> None:
        assert eventually(lambda: event._changed.is_awaited)
        event.set()

    setter = threading.Thread(target=set_it, daemon=True)
    setter.start()
    yield
    setter.join(PATIENCE_S)
    assert not setter.is_alive()


def test_it_is_waited_for_set_and_cleared() -> None:
    event = SafeEvent()
    assert not event.wait(0.01)
    with set_once_awaited(event):
        assert event.wait(PATIENCE_S)
    assert event.is_set()
    event.clear()
    assert not event.is_set()


@pytest.mark.parametrize("seconds", [1e10, 1e300, math.inf])
def test_a_wait_may_have_no_end(seconds: float) -> None:
    event = SafeEvent()
    with set_once_awaited(event):
        assert event.wait(seconds)


def test_all_waiting_threads_are_woken() -> None:
    event = SafeEvent()
    threads = [threading.Thread(target=event.wait, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _interrupted_wait(event: SafeEvent, seconds: float) -> None:
    """Waits until an interrupt comes after `seconds`. Python's own locks may answer it with a RuntimeError."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            event.wait(0.0001)
    except (KeyboardInterrupt, RuntimeError):
        pass


def test_an_interrupt_anywhere_in_a_wait_leaves_no_lock() -> None:
    """threading.Event fails this test: another thread can no longer set it."""
    event = SafeEvent()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(INTERRUPTS):
            _interrupted_wait(event, 1e-4 + number * 1e-6)
    finally:
        signal.signal(signal.SIGALRM, before)
    setter = threading.Thread(target=event.set, daemon=True)
    setter.start()
    setter.join(PATIENCE_S)
    assert event.is_set()
    assert event.wait(0)


class Moment(Enum):
    """When an interrupt ends a call of a lock: before it has an effect, as one that blocks, or afterwards."""

    BEFORE = 1
    AFTER = 2


class InterruptedLock:
    """A lock of which some calls, counted over both kinds, end by an exception, as Python raises those of signals."""

    def __init__(self, interrupts: Mapping[int, Moment]) -> None:
        self.lock = threading.RLock()
        self._interrupts = interrupts
        self.calls = 0

    def acquire(self) -> None:
        self._call(self.lock.acquire)

    def release(self) -> None:
        self._call(self.lock.release)

    def _is_owned(self) -> bool:
        owned = self.lock._is_owned()  # type: ignore[attr-defined]
        self._call(lambda: None)
        return bool(owned)

    def _call(self, call: Callable[[], object]) -> None:
        moment, self.calls = self._interrupts.get(self.calls), self.calls + 1
        if moment is Moment.BEFORE:
            raise Interrupt
        call()
        if moment is Moment.AFTER:
            raise Interrupt


def wait_interrupted(interrupts: Mapping[int, Moment]) -> int:
    """Waits, and asserts that the caller still has the lock, once. Returns how many calls of the lock there were."""
    condition, lock = SafeCondition(), InterruptedLock(interrupts)
    condition.lock, condition._is_taken = lock, lock._is_owned  # type: ignore[assignment]
    with lock.lock:
        with pytest.raises(Interrupt) if interrupts else nullcontext():
            condition.wait(0)
        assert not condition.is_awaited
        lock.lock.release()
        assert not lock.lock._is_owned(), interrupts  # type: ignore[attr-defined]
        lock.lock.acquire()
    return lock.calls


def test_after_two_interrupts_of_a_wait_its_caller_has_the_lock() -> None:
    """Python raises the exception of a signal after a call only, or in one that blocks: no step is left out here."""
    tried = 0
    for first, one in product(range(wait_interrupted({})), Moment):
        for second in range(first + 1, wait_interrupted({first: one})):
            for another in Moment:
                wait_interrupted({first: one, second: another})
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("again", [1, 2, 3])
@pytest.mark.parametrize("call", [lambda event: event.wait(0.001), SafeEvent.set, SafeEvent.clear])
def test_a_second_interrupt_leaves_no_lock(call: Callable[[SafeEvent], object], again: int) -> None:
    event = SafeEvent()
    for place in each_interrupt(lambda: call(event), again):
        setter = threading.Thread(target=event.set, daemon=True)
        setter.start()
        setter.join(PATIENCE_S)
        assert event.wait(PATIENCE_S) and not event._changed.is_awaited, place
        event.clear()


def ring_interrupted(condition: SafeCondition, interrupts: int) -> None:
    """Wakes all threads, with an interrupt in the middle of each of the first attempts."""
    ring, left = condition._ring, [interrupts]

    def interrupted() -> None:
        if left[0]:
            left[0] -= 1
            raise Interrupt
        ring()

    with mock.patch.object(condition, "_ring", interrupted), condition.lock, pytest.raises(Interrupt):
        condition.wake_all()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_after_two_interrupts_all_waiting_threads_are_woken(interrupts: int) -> None:
    event = SafeEvent()
    waiting = threading.Thread(target=event.wait, daemon=True)
    waiting.start()
    assert eventually(lambda: event._changed.is_awaited)
    event._set = True
    ring_interrupted(event._changed, interrupts)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_wait_ends_in_time(virtual_clock: VirtualClock) -> None:
    for seconds in (0.2, 3600.0, -1.0):
        began = virtual_clock.now
        assert not SafeEvent().wait(seconds)
        assert virtual_clock.now - began == pytest.approx(max(0.0, seconds))


@pytest.mark.parametrize("call", [lambda event: event.wait(0.001), SafeEvent.set, SafeEvent.clear])
def test_an_interrupt_at_any_place_leaves_no_lock(call: Callable[[SafeEvent], object]) -> None:
    """The lock must be free, and other threads must be woken, whatever step of a call was the last one."""
    event = SafeEvent()
    for place in each_interrupt(lambda: call(event)):
        setter = threading.Thread(target=event.set, daemon=True)
        setter.start()
        setter.join(PATIENCE_S)
        assert event.wait(PATIENCE_S) and not event._changed.is_awaited, place
        event.clear()
