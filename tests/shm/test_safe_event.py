"""Tests of an event that interrupts do not leave locked."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable

import pytest

from eventually import eventually
from interrupted_calls import each_interrupt
from pagetier.shm.safe_event import SafeEvent
from virtual_clock import VirtualClock

INTERRUPTS = 500


def set_once_awaited(event: SafeEvent) -> None:
    """Sets the event when a thread waits for it."""

    def set_it() -> None:
        assert eventually(lambda: event._changed.is_awaited)
        event.set()

    threading.Thread(target=set_it).start()


def test_it_is_waited_for_set_and_cleared() -> None:
    event = SafeEvent()
    assert not event.wait(0.01)
    set_once_awaited(event)
    assert event.wait(20)
    assert event.is_set()
    event.clear()
    assert not event.is_set()


@pytest.mark.parametrize("seconds", [1e10, 1e300, math.inf])
def test_a_wait_may_have_no_end(seconds: float) -> None:
    event = SafeEvent()
    set_once_awaited(event)
    assert event.wait(seconds)


def test_all_waiting_threads_are_woken() -> None:
    event = SafeEvent()
    threads = [threading.Thread(target=event.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(20)
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
    setter.join(20)
    assert event.is_set()
    assert event.wait(0)


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
        setter = threading.Thread(target=event.set)
        setter.start()
        setter.join(20)
        assert event.wait(20) and not event._changed.is_awaited, place
        event.clear()
