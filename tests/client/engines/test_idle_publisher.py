"""Publishes events of an idle engine from a thread: a step comes first, and no end of an engine waits for it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from eventually import eventually
from pagetier.client.engines.events.idle_publisher import IdlePublisher, StepOrder


def test_the_thread_lets_a_step_publish_first() -> None:
    order = StepOrder()
    assert order.lets_thread_publish()
    order.step(publishes=True)
    assert [order.lets_thread_publish() for _ in range(3)] == [False] * 3, "the step has not published yet"
    order.published()
    assert order.lets_thread_publish()


def test_the_thread_leaves_changes_to_an_engine_that_does_steps() -> None:
    order = StepOrder()
    for _ in range(3):
        order.step(publishes=False)
        assert not order.lets_thread_publish()
    assert order.lets_thread_publish()


class Publisher:
    """Records what an engine's publisher is asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def publish(self, batch: list[str]) -> None:
        self.asked += batch

    def shutdown(self) -> None:
        self.asked.append("shutdown")


class Events:
    """Has one event in each call."""

    def published(self) -> None: ...

    def publish_idle(self, publish: Callable[[list[Any]], object]) -> bool:
        publish(["event"])
        return False


def test_nothing_is_published_after_the_shutdown() -> None:
    idle, publisher = IdlePublisher(list, logging.getLogger()), Publisher()
    idle.use(publisher)
    idle.start(Events())
    assert eventually(lambda: publisher.asked)
    publisher.shutdown()
    assert idle._thread is not None and not idle._thread.is_alive()
    assert publisher.asked.index("shutdown") == len(publisher.asked) - 1
    idle.start(Events())
    assert publisher.asked[-1] == "shutdown"


def test_an_engine_without_a_publisher_has_no_thread() -> None:
    idle = IdlePublisher(list, logging.getLogger())
    idle.start(Events())
    assert idle._thread is None
    idle.stop()


_EXIT = """
import logging, threading
from pagetier.client.engines.events import idle_publisher

idle_publisher._JOIN_S = 0.1

class Events:
    def publish_idle(self, publish): publish([]); return False
    def published(self): pass

class Publisher:
    began = threading.Event()
    def publish(self, batch): self.began.set(); threading.Event().wait()
    def shutdown(self): print("shut down")

idle, publisher = idle_publisher.IdlePublisher(list, logging.getLogger()), Publisher()
idle.use(publisher)
idle.start(Events())
assert publisher.began.wait(60)
{end}
print("ends")
"""


@pytest.mark.parametrize("end", ["publisher.shutdown()", "idle.stop()", ""])
def test_a_full_queue_keeps_no_engine_from_its_end(end: str) -> None:
    """vLLM's queue is never emptied once its publisher has ended, so that a thread may wait for a place forever."""
    program = [sys.executable, "-c", _EXIT.format(end=end)]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "ends" in ended.stdout and "Traceback" not in ended.stderr
