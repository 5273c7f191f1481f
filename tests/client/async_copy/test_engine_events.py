"""Events of an engine that fail or are invalid: only the load or store that waits for the event fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from copying_engine import LAYERS, CopyingEngine, release_arena, slots_of
from eventually import PATIENCE_S, eventually
from pagetier.client import Client
from running_daemon import RunningDaemon

ARENA = "32MiB"


@pytest.fixture
def engine(daemon: RunningDaemon) -> Iterator[CopyingEngine]:
    """Returns an engine whose prompt 1 is stored, with four pages."""
    with daemon.client() as client:
        made = CopyingEngine(client, 1)
        made.number(1)
        assert made.copier.store(made.keys(1, 4), slots_of(4)).wait(PATIENCE_S).refused == 0
        made.number(9)
        yield made
        assert made.copier.close(PATIENCE_S), "no copies stay in flight"


class Late:
    """An engine's own event, which raises once it is set."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def wait(self) -> None:
        self.gone.wait(PATIENCE_S)
        raise LookupError("the engine's own error")


def cancelled() -> tuple[object, Callable[[], object]]:
    future = Future[None]()
    return future, future.cancel


def failed() -> tuple[object, Callable[[], object]]:
    future = Future[None]()
    return future, lambda: future.set_exception(OSError("the engine's own error"))


def raised() -> tuple[object, Callable[[], object]]:
    event = Late()
    return event, event.gone.set


FAILING = pytest.mark.parametrize("failing", [cancelled, failed, raised])
Failing = Callable[[], tuple[object, Callable[[], object]]]


@FAILING
def test_only_the_load_that_waits_for_a_failed_event_fails(engine: CopyingEngine, failing: Failing) -> None:
    after, fails = failing()
    load = engine.load(engine.keys(1, 4), slots_of(4), after=after)
    other = engine.load(engine.keys(1, 4), slots_of(4, 2))
    assert load.pages == 4 and not load.wait(0, 0.02) and not load.failed
    fails()
    assert not load.wait(LAYERS - 1, PATIENCE_S) and load.wait_ended(PATIENCE_S)
    assert "the engine's event failed" in load.failed and "failed" in repr(load)
    assert other.wait(LAYERS - 1, PATIENCE_S) and not other.failed and engine.says(slots_of(4, 2), 1)
    assert not any(load.ready(layer) or load.wait(layer, 0) for layer in range(LAYERS))
    with ThreadPoolExecutor(1) as stream:
        assert not load.make_stream_wait(stream, 0, 0.0)
    later = engine.load(engine.keys(1, 4), slots_of(4))
    assert later.pages == 4 and later.wait(LAYERS - 1, PATIENCE_S)


def test_a_load_that_fails_writes_nothing(engine: CopyingEngine) -> None:
    after = Future[None]()
    load = engine.load(engine.keys(1, 4), slots_of(4), after=after)
    assert not load.wait(0, 0.02)
    after.cancel()
    assert load.wait_ended(PATIENCE_S) and engine.says(slots_of(4), 9)


@FAILING
def test_only_the_store_that_waits_for_a_failed_event_is_cancelled(
    engine: CopyingEngine, failing: Failing, daemon: RunningDaemon
) -> None:
    after, fails = failing()
    prompt = 10 + [cancelled, failed, raised].index(failing)
    store = engine.copier.store(engine.keys(prompt, 4), slots_of(4), after)
    other = engine.copier.store(engine.keys(prompt + 10, 4), slots_of(4))
    assert store.wait(0.02).pending == 4
    fails()
    assert store.wait(PATIENCE_S).refused == 4 and other.wait(PATIENCE_S).stored == 4
    assert engine.load(engine.keys(prompt, 4), slots_of(4)).pages == 0
    assert engine.copier.store(engine.keys(prompt, 4), slots_of(4)).wait(PATIENCE_S).stored == 4
    assert eventually(lambda: daemon.header().open_entries == 0)


class Exiting:
    """Raises a BaseException that is not an Exception."""

    def wait(self) -> None:
        raise SystemExit


def test_any_exception_of_an_event_ends_the_load_and_the_store(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        engine = CopyingEngine(client, 1)
        keys, slots = engine.keys(50, 4), slots_of(4)
        store = engine.copier.store(keys, slots, Exiting())
        assert (
            store.wait(PATIENCE_S).refused + store.wait(PATIENCE_S).stored == 4 and "SystemExit" in store.wait(0).reason
        )
        release_arena(client)


@pytest.mark.parametrize("wrong", ["event", 3, asyncio.Event(), Client])
def test_an_object_that_is_not_an_event_raises_at_once(engine: CopyingEngine, wrong: object) -> None:
    keys, slots = engine.keys(1, 4), slots_of(4)
    for begins in (lambda: engine.copier.store(keys, slots, wrong), lambda: engine.load(keys, slots, after=wrong)):
        with pytest.raises(ValueError, match=r"has no wait|cannot wait for it"):
            begins()
