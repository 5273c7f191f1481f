"""A queue of copies sleeps until something changes, and no wake-up is lost."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from copying_engine import LAYERS, CopyingEngine, slots_of
from copying_world import PAGE_BLOCKS, CopyingWorld, Process, keys_of
from eventually import PATIENCE_S
from fake_device import EngineEvent, FakeStream
from pagetier.client import Client, LoadHandle, Match, StoreHandle
from pagetier.client.adapters import reserve_async
from pagetier.client.async_copy import copier
from pagetier.client.async_copy.stream_queue import StreamQueue
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Direction, Event
from pagetier.kernels.host.host_device import HostDevice, HostEvent
from pagetier.shm.daemon_link import LinkError
from seeded_random import chance

PAGE = 6016
COPYING = CopySettings(chunk=2 * PAGE, depth=2, reserve_timeout=1.0)
FAST_SWITCH_S = 1e-6
ROUNDS = 400


@pytest.fixture
def world() -> Iterator[CopyingWorld]:
    made = CopyingWorld()
    yield made
    made.memory.close()


@pytest.fixture
def process(world: CopyingWorld) -> Process:
    return Process(world, COPYING)


def asked(process: Process, pages: int = 2) -> StoreHandle:
    """Starts a store whose request is not answered."""
    store = process.copier.store(keys_of(1, pages), process.cache.slots(list(range(pages * PAGE_BLOCKS))))
    process.lanes[0].step()
    return store


def in_flight(process: Process) -> None:
    asked(process)
    process.answer()
    process.lanes[0].step()


Change = Callable[[], object]


def event(process: Process) -> Change:
    in_flight(process)
    return process.device.advance_all


def event_of_a_new_piece(process: Process) -> Change:
    """The next step of the queue enqueues the copies."""
    asked(process)
    process.answer()
    return process.device.advance_all


def response(process: Process) -> Change:
    asked(process)
    return process.answer


def end_of_the_daemon(process: Process) -> Change:
    asked(process)
    return process.requests.fail_all


def cancel(process: Process) -> Change:
    return asked(process).cancel


def cancel_in_flight(process: Process) -> Change:
    store = asked(process, 5)
    process.answer()
    process.lanes[0].step()
    return store.cancel


def new_job(process: Process) -> Change:
    return lambda: process.copier.store(keys_of(1, 1), process.cache.slots(list(range(PAGE_BLOCKS))))


def close(process: Process) -> Change:
    return process.lanes[0].close


def begin(process: Process) -> Change:
    store = process.copier.store(keys_of(1, 2), process.cache.slots(list(range(2 * PAGE_BLOCKS))), delay=600.0)
    process.lanes[0].step()
    return store.begin


CHANGES = (event, event_of_a_new_piece, response, end_of_the_daemon, cancel, cancel_in_flight, new_job, close, begin)


def while_it_looks(queue: StreamQueue, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a change after the queue has looked at everything, and before the end of its step."""
    looked = queue._forget_ended

    def then_changed() -> None:
        looked()
        change()

    with monkeypatch.context() as patch:
        patch.setattr(queue, "_forget_ended", then_changed)
        queue.step()
    waits(queue).join(PATIENCE_S)


def before_it_waits(queue: StreamQueue, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.step()
    change()
    waits(queue).join(PATIENCE_S)


def while_it_waits(queue: StreamQueue, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.step()
    thread = waits(queue)
    thread.join(0.05)
    assert thread.is_alive(), "the queue does not sleep"
    change()
    thread.join(PATIENCE_S)


def waits(queue: StreamQueue) -> threading.Thread:
    """Starts a thread that waits for a wake-up, for ever if it is lost."""
    thread = threading.Thread(target=queue.wait_for_work, args=(None,), name="waits", daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("moment", (while_it_looks, before_it_waits, while_it_waits), ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", CHANGES, ids=lambda one: one.__name__)
def test_every_change_wakes_the_queue_at_every_moment(
    process: Process,
    kind: Callable[[Process], Change],
    moment: Callable[[StreamQueue, Change, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = process.lanes[0]
    moment(queue, kind(process), monkeypatch)
    assert not [thread for thread in threading.enumerate() if thread.name == "waits"], "the wake-up was lost"


def test_an_event_has_come_when_it_wakes_a_queue() -> None:
    stream, seen, called = HostDevice().stream(Direction.LOAD), [], threading.Event()
    events: list[HostEvent] = []

    def look(event: Event) -> None:
        seen.append(event is events[0] and event.done())
        called.set()

    stream.call_after_events(look)
    gate = threading.Event()
    stream.after(gate)
    events.append(stream.record())
    gate.set()
    assert called.wait(PATIENCE_S) and seen == [True]
    assert stream.close(PATIENCE_S)


def test_a_response_is_known_when_it_wakes_a_queue(process: Process) -> None:
    pending = reserve_async(process, keys_of(1, 1), PAGE, process.copier._store_resources._part, 0.0)
    seen: list[bool] = []
    pending.call_when_ready(lambda: seen.append(pending.ready))
    process.answer()
    assert seen == [True]


def test_a_queue_sleeps_until_its_next_time_limit(world: CopyingWorld, process: Process) -> None:
    queue = process.lanes[0]
    assert queue.step() is None
    asked(process)
    assert queue.step() == pytest.approx(COPYING.reserve_timeout)
    world.now += 0.4
    assert queue.step() == pytest.approx(COPYING.reserve_timeout - 0.4)
    process.answer()
    assert queue.step() is None, "copies are in flight, and their event wakes the queue"
    process.device.advance_all()
    assert queue.step() is None


def test_a_queue_sleeps_until_its_bandwidth_allows_the_next_chunk(world: CopyingWorld) -> None:
    process = Process(world, msgspec.structs.replace(COPYING, depth=8, queue_limit=10.0, store_bandwidth=2 * PAGE))
    asked(process, 5)
    process.answer()
    assert process.lanes[0].step() == pytest.approx(1.0)
    world.now += 1.0
    assert process.lanes[0].step() == pytest.approx(1.0)
    world.now += 1.0
    assert process.lanes[0].step() == pytest.approx(0.5), "the last chunk has one page"


def test_a_request_that_the_socket_did_not_take_is_sent_again(
    world: CopyingWorld, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: object, timeout: float, owner: object) -> None:
        raise LinkError("the socket is full")

    with monkeypatch.context() as patch:
        patch.setattr(process.wire, "send", full)
        store = asked(process)
        pause = process.lanes[0].step()
    assert pause is not None and 0 < pause < 0.01
    world.now += pause
    process.lanes[0].step()
    assert len(process.wire.sent) == 1 and not store.ready


def test_a_stream_that_cannot_call_is_polled(world: CopyingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "call_after_events", lambda *_: False)
    process = Process(world, COPYING)
    in_flight(process)
    pauses = [process.lanes[0].step() for _ in range(10)]
    assert all(pause is not None and 0 < pause <= 1e-3 for pause in pauses) and pauses[-1] == 1e-3
    process.device.advance_all()
    assert process.lanes[0].step() is None


def loading(process: Process) -> LoadHandle:
    with process.session.match(Match, None, keys_of(2).data) as match:
        return process.copier.load(match, process.cache.slots(list(range(3 * PAGE_BLOCKS))))


def test_the_layers_of_a_load_wake_its_queue_once(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(2, 3, PAGE)
    queue, load = process.lanes[1], loading(process)
    assert queue.step() is None and queue._inbox.empty()
    assert process.device.advance_all() and queue._inbox.qsize() == 1
    assert queue.step() is None and load.ended and queue._inbox.empty()


def test_the_end_of_each_load_wakes_its_queue(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(2, 3, PAGE)
    queue, (one, other) = process.lanes[1], (loading(process), loading(process))
    queue.step()
    while queue._inbox.empty():
        assert process.device.streams[1].advance()
    queue.step()
    assert one.ended and not other.ended


def test_the_event_of_an_engine_wakes_its_queue(process: Process) -> None:
    """Otherwise the time of the copies behind this event would not be measured."""
    event, queue = EngineEvent(), process.lanes[0]
    process.copier.store(keys_of(1, 1), process.cache.slots(list(range(PAGE_BLOCKS))), after=event)
    queue.step()
    process.answer()
    queue.step()
    assert not process.device.advance_all() and queue._inbox.empty()
    event.came = True
    while queue._inbox.empty():
        assert process.device.streams[0].advance()
    assert process.device.frames_of(Direction.STORE), "the copies have not begun"


def step_if_awake(world: CopyingWorld, queue: StreamQueue, due: float) -> float:
    """Steps as the thread of a queue does, and returns when it wakes by itself."""
    if queue._inbox.empty() and world.now < due:
        return due
    pause = queue.step()
    return math.inf if pause is None else world.now + pause


@pytest.mark.parametrize("turn", range(20))
def test_a_queue_that_sleeps_has_no_work(world: CopyingWorld, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """Loads of two layers, with room for one to three of their pieces; a limit leaves cancelled loads half enqueued."""
    rng, due, loads = chance(), -math.inf, []
    monkeypatch.setattr(copier, "_LAYERS_IN_ADVANCE", int(rng.integers(1, 4)))
    limit = int(rng.choice([0, 3 * PAGE]))
    process = Process(world, msgspec.structs.replace(COPYING, load_bandwidth=limit))
    world.store_elsewhere(2, 3, PAGE)
    for move in rng.choice(["load", "cancel", "copy", "time", "step", "step"], 200):
        if move == "load":
            loads.append(loading(process))
        elif move == "cancel" and loads:
            loads[rng.integers(len(loads))].cancel()
        elif move == "copy":
            process.device.streams[1].advance()
        elif move == "time":
            world.now += rng.exponential()
        else:
            due = step_if_awake(world, process.lanes[1], due)
    while process.device.advance_all() or not process.lanes[1]._inbox.empty() or due < math.inf:
        world.now = max(world.now, due) if due < math.inf else world.now
        due = step_if_awake(world, process.lanes[1], due)
    assert loads and all(load.ended for load in loads)


@pytest.fixture
def fast_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(FAST_SWITCH_S)
    yield
    sys.setswitchinterval(before)


def test_copies_of_real_threads_all_end(client: Client, fast_switches: None) -> None:
    """Threads are switched as often as possible. A lost wake-up would leave a copy unfinished for ever."""
    rng, slots = chance(), slots_of(4)
    one, other = CopyingEngine(client, 1), CopyingEngine(client, 2)
    for turn in range(ROUNDS):
        keys = one.keys(turn, 4)
        stores = [engine.copier.store(keys, slots) for engine in (one, other)]
        if rng.random() < 0.2:
            stores[1].cancel()
        assert all(store.wait_ended(PATIENCE_S) and store.ready for store in stores), turn
        load = other.load(keys, slots)
        if rng.random() < 0.2:
            load.cancel()
        else:
            assert load.wait(LAYERS - 1, PATIENCE_S) or not load.pages, turn
        assert load.wait_ended(PATIENCE_S), turn
    assert one.copier.close(PATIENCE_S) and other.copier.close(PATIENCE_S)
