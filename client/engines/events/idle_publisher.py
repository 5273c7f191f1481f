"""Publishes events while an engine does no step: an idle engine asks its cache for events late, or not at all."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from pagetier.shm import clock

_PAUSE_S: Final = 0.1
_JOIN_S: Final = 1.0


class IdleEvents(Protocol):
    """Events that a step or the thread takes."""

    def published(self) -> None:
        """Records that the events of the last step are in the engine's stream."""

    def publish_idle(self, publish: Callable[[list[Any]], object]) -> bool:
        """Publishes the events since the last call, unless a step did so in between.

        Args:
            publish: Puts events into the engine's stream. If it raises, the events are kept for the next step.

        Returns:
            Whether more pages are to be located.
        """


class StepOrder:
    """Orders the events of steps and those of the thread: what a step has taken is published first.

    Attributes:
        lock: Held while events are taken. The thread also publishes under it, a step does not.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._stepped = self._unpublished = False

    def step(self, *, publishes: bool) -> None:
        """Records, under the lock, that a step has taken events, and whether it is going to publish any."""
        self._stepped, self._unpublished = True, publishes

    def published(self) -> None:
        """Records that the events of the last step are in the engine's stream. Needs no lock."""
        self._unpublished = False

    def lets_thread_publish(self) -> bool:
        """Returns, under the lock, whether no step came since the last call and none has events to publish."""
        stepped, self._stepped = self._stepped, False
        return not stepped and not self._unpublished


class IdlePublisher:
    """Fills the engine's own stream of events from a thread, between steps.

    The publishers of vLLM and SGLang have a queue, from which a thread of their own numbers and sends batches. So any
    thread may publish, and sequence numbers and the replay buffer stay those of one stream. A StepOrder orders the two.

    Args:
        batch: Returns the engine's batch of events.
        log: Where a failure is logged.
    """

    def __init__(self, batch: Callable[[list[Any]], Any], log: logging.Logger) -> None:
        self._batch, self._log = batch, log
        self._publish: Callable[[Any], object] | None = None
        self._events: IdleEvents | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def use(self, publisher: Any) -> None:
        """Publishes with this publisher of the engine, and follows what the engine's scheduler does with it."""
        publish, shutdown = publisher.publish, publisher.shutdown

        def publish_step(batch: Any) -> None:
            publish(batch)
            if self._events is not None:
                self._events.published()

        def stop_and_shut_down() -> None:
            self.stop()  # what is published after the publisher's end stays in its queue
            shutdown()

        self._publish = publish
        publisher.publish, publisher.shutdown = publish_step, stop_and_shut_down

    def start(self, events: IdleEvents) -> None:
        """Publishes these events while no step takes them, if the engine has a publisher. May be called repeatedly."""
        if self._events is None and self._publish is not None:
            self._events = events
            atexit.register(self.stop)  # before the end of the publisher, which was made before
            self._thread = threading.Thread(target=self._run, name="pagetier-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. It waits for one that publishes, but not forever: the engine's queue may be full."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        atexit.unregister(self.stop)

    def _run(self) -> None:
        assert self._events is not None
        log = self._log
        try:
            while not clock.wait(self._stopped.wait, _PAUSE_S):
                while self._events.publish_idle(self._publish_events) and not self._stopped.is_set():
                    pass
        except Exception:
            log.exception("announcing pages of the idle engine failed: routers hear of changes at its next step")

    def _publish_events(self, events: list[Any]) -> None:
        assert self._publish is not None
        self._publish(self._batch(events))


def use_next_publisher(factory: Any, idle: IdlePublisher) -> None:
    """Gives the publisher that an engine makes next to `idle`: a scheduler makes it after its cache.

    Args:
        factory: The engine's EventPublisherFactory.
        idle: Receives the publisher.
    """
    original = factory.__dict__["create"]

    def create(cls: Any, *arguments: Any, **named: Any) -> Any:
        factory.create = original
        publisher = original.__get__(None, cls)(*arguments, **named)
        idle.use(publisher)
        return publisher

    factory.create = classmethod(create)
