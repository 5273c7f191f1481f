"""Stores and loads step by step: depth, order of layers, waiting, and invalid arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from copying_world import LAYERS, PAGE_BLOCKS, CopyingWorld, Process, keys_of
from eventually import PATIENCE_S, eventually
from fake_device import EngineEvent, FakeStream
from keyed_pages import assert_exact, pages_of
from pagetier.client import Match, Outcome, StoreHandle
from pagetier.client.adapters import AsyncCopier
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Copy
from pagetier.kernels.layout.tables import token_rows
from virtual_clock import VirtualClock

PAGE = 6016
COPYING = CopySettings(chunk=2 * PAGE, depth=2, reserve_timeout=1.0)


@pytest.fixture
def world() -> Iterator[CopyingWorld]:
    made = CopyingWorld()
    yield made
    assert made.owner.check_integrity() == []
    made.memory.close()


@pytest.fixture
def process(world: CopyingWorld) -> Process:
    return Process(world, COPYING)


def blocks_of(pages: int, begin: int = 0) -> list[int]:
    return list(range(begin * PAGE_BLOCKS, (begin + pages) * PAGE_BLOCKS))


def stored(process: Process, prompt: int, pages: int, after: EngineEvent | None = None) -> StoreHandle:
    """Starts to store pages that are in the first blocks of the cache."""
    keys, blocks = keys_of(prompt, pages), blocks_of(pages)
    process.cache.fill(blocks, pages_of(keys, PAGE))
    return process.copier.store(keys, process.cache.slots(blocks), after)


def granted(process: Process, prompt: int, pages: int, after: EngineEvent | None = None) -> StoreHandle:
    store = stored(process, prompt, pages, after)
    hear(process)
    return store


def hear(process: Process) -> None:
    """Answers one request, and enqueues its copies."""
    process.step()
    process.answer()
    process.step()


def carried_out(process: Process) -> None:
    while process.device.advance_all():
        process.step()


def copies(stream: FakeStream) -> list[Copy]:
    """Returns the copies that are enqueued."""
    steps = [item.copy for item in stream.todo if hasattr(item, "copy")]
    return list(dict.fromkeys(steps))


def numbers_of(copy: Copy) -> list[int]:
    return [int(position) // 4 for position in copy.transfer.slots.pages["position"]]


# ---- stores


def test_chunks_are_published_as_their_events_come(world: CopyingWorld, process: Process) -> None:
    store = granted(process, 1, 5)
    stream = process.device.streams[0]
    assert [numbers_of(copy) for copy in copies(stream)] == [[0, 1], [2, 3]], (
        "two chunks at once, from the first page on"
    )
    assert not store.ready and store.wait(0).outcomes == [Outcome.PENDING] * 5
    while world.readable(1, PAGE) < 2:
        assert stream.advance()
        process.step()
    assert store.wait(0).stored == 2 and [numbers_of(copy) for copy in copies(stream)][-1] == [4]
    carried_out(process)
    assert store.ready and store.wait(0).stored == 5 and store.ended
    assert process.copier.counts.stored == 5 * PAGE
    assert store.wait(0).reason == ""


def test_the_last_pages_of_a_store_are_dropped_when_the_backlog_is_full(world: CopyingWorld) -> None:
    process = Process(world, msgspec.structs.replace(COPYING, queue_limit=3.5 * PAGE / 2**31))
    store = granted(process, 1, 5)
    assert process.copier.dropped == 2 and world.owner.settle() == 3
    other = granted(process, 2, 2)
    assert other.ready and other.wait(0).outcomes == [Outcome.REFUSED] * 2
    assert "cannot keep up" in other.wait(0).reason
    carried_out(process)
    assert [outcome.name for outcome in store.wait(0).outcomes] == ["STORED"] * 3 + ["REFUSED"] * 2
    assert process.copier.counts.dropped == 4
    assert granted(process, 2, 2).wait(0).pending == 2, "there is room again"


def test_a_bandwidth_cap_holds_chunks_back(world: CopyingWorld) -> None:
    process = Process(world, msgspec.structs.replace(COPYING, depth=8, queue_limit=10.0, store_bandwidth=2 * PAGE))
    granted(process, 1, 5)
    stream = process.device.streams[0]
    assert len(copies(stream)) == 1
    for seconds, enqueued in ((0.9, 1), (0.2, 2), (0.5, 2), (0.6, 3)):
        world.now += seconds
        process.step()
        assert len(copies(stream)) == enqueued


def test_loads_do_not_wait_for_stores(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(2, 3, PAGE)
    granted(process, 1, 5, EngineEvent())
    with process.session.match(Match, None, keys_of(2).data) as match:
        load = process.copier.load(match, process.cache.slots(blocks_of(3, 10)))
    process.step()
    while process.device.streams[1].advance():
        pass
    assert load.ready(0) and load.ready(1)


def test_layers_become_ready_in_order(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(1, 3, PAGE)
    with process.session.match(Match, None, keys_of(1).data) as match:
        load = process.copier.load(match, process.cache.slots(blocks_of(4)), start_page=1)
    assert (load.pages, load.layers) == (2, LAYERS) and not load.ready(0)
    process.step()
    stream, seen = process.device.streams[1], []
    while stream.advance():
        seen.append([load.ready(layer) for layer in range(LAYERS)])
    assert [True, False] in seen and seen[-1] == [True, True] and not load.ended
    process.step()
    assert load.ended and load.wait(1, 0) and process.copier.counts.loaded == 2 * PAGE
    with pytest.raises(ValueError, match="no layer 2: the cache has 2"):
        load.ready(2)


def test_a_stream_of_the_engine_waits_until_a_layer_is_in_the_cache(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(1, 2, PAGE)
    with process.session.match(Match, None, keys_of(1).data) as match:
        load = process.copier.load(match, process.cache.slots(blocks_of(2)))
    engine = FakeStream(process.device, process.device.streams[0].direction)
    assert not load.make_stream_wait(engine, 0, 0) and not engine.todo
    process.step()
    assert load.make_stream_wait(engine, 0, 0) and len(engine.todo) == 1
    process.device.advance_all()
    process.step()
    assert load.make_stream_wait(engine, 1, 0)


def test_the_rate_is_measured_from_the_event_of_the_engine_on(world: CopyingWorld, process: Process) -> None:
    rate, after = process.copier._store_resources.backlog._rate, EngineEvent()
    granted(process, 1, 2, after)
    world.now += 100.0
    after.came = True
    stream = process.device.streams[0]
    assert stream.advance() and stream.advance()
    process.step()
    world.now += 1.0
    carried_out(process)
    assert rate.value == pytest.approx(2 * PAGE, rel=1e5) and rate.value > 2**31 / 40


def test_a_load_says_from_when_until_when_its_layers_were_copied(world: CopyingWorld, process: Process) -> None:
    """Without its wait for the engine. If its queue hears of the engine and of the layers at once, it does not know."""
    world.store_elsewhere(1, 2, PAGE)
    for hears, known in ((True, True), (False, False)):
        after = EngineEvent()
        with process.session.match(Match, None, keys_of(1).data) as match:
            load = process.copier.load(match, process.cache.slots(blocks_of(2, 4)), after=after)
        process.step()
        assert load.span == (math.inf, -math.inf)
        world.now += 100.0
        after.came = True
        began = world.now
        if hears:
            stream = process.device.streams[1]
            assert stream.advance() and stream.advance()
            process.step()
        world.now += 1.0
        carried_out(process)
        assert load.ended and load.span == ((began, world.now) if known else (math.inf, world.now))


# ---- requests, and a daemon that does not answer


def test_a_store_is_rejected_when_the_daemon_does_not_answer_in_time(world: CopyingWorld, process: Process) -> None:
    store = stored(process, 1, 2)
    process.step()
    world.now += 0.9
    process.step()
    assert not store.ready
    world.now += 0.2
    process.step()
    assert store.ready and store.wait(0).refused == 2 and "did not answer" in store.wait(0).reason
    process.answer()
    world.owner.settle()
    assert world.owner.open_entries == 0


def delayed(process: Process, prompt: int) -> StoreHandle:
    """Starts to store two pages after half a second. Its queue has taken it."""
    keys, blocks = keys_of(prompt, 2), blocks_of(2)
    process.cache.fill(blocks, pages_of(keys, PAGE))
    store = process.copier.store(keys, process.cache.slots(blocks), delay=0.5)
    process.step()
    return store


def test_a_delayed_store_asks_the_daemon_after_its_delay(world: CopyingWorld, process: Process) -> None:
    store, queue = delayed(process, 1), process.lanes[0]
    world.now += 0.4
    assert queue.step() == pytest.approx(0.1) and not process.wire.sent
    assert store.wait(0).pending == 2 and not store.wait_ended(0)  # polling does not end the delay
    assert queue.step() == pytest.approx(0.1) and not process.wire.sent
    world.now += 0.11
    hear(process)
    carried_out(process)
    assert store.ended and store.wait(0).stored == 2


def test_a_delayed_store_begins_when_it_is_waited_for(process: Process, virtual_clock: VirtualClock) -> None:
    waits: list[Callable[[StoreHandle], object]] = [lambda one: one.wait(1e-6), lambda one: one.wait_ended(1e-6)]
    for at, wait in enumerate(waits):
        store = delayed(process, 1 + at)
        wait(store)
        began = virtual_clock.now
        process.lanes[0].wait_for_work(60.0)
        assert virtual_clock.now == began, "nothing woke the queue"
        hear(process)
        carried_out(process)
        assert store.ended and store.wait(0).stored == 2


def test_a_delayed_store_that_is_cancelled_ends_at_once(process: Process) -> None:
    store = delayed(process, 1)
    store.cancel()
    process.step()
    assert store.ended and store.wait(0).refused == 2 and not process.wire.sent
    assert process.copier.counts.cancelled == 2


def test_a_delayed_store_does_not_delay_another_one(process: Process) -> None:
    later, now = delayed(process, 1), granted(process, 2, 2)
    carried_out(process)
    assert now.ended and not later.ended


def test_a_copier_that_closes_finishes_delayed_stores(process: Process) -> None:
    store = delayed(process, 1)
    assert not process.copier.close(0)
    process.world.now += 0.6
    hear(process)
    carried_out(process)
    assert store.wait(0).stored == 2 and process.copier.close(0)


def test_a_store_that_is_cancelled_before_the_response_copies_nothing(world: CopyingWorld, process: Process) -> None:
    one, other = stored(process, 1, 2), stored(process, 2, 2)
    one.cancel()
    process.step()
    assert one.ready and process.copier.counts.cancelled == 2
    other.cancel()
    process.answer()
    process.step()
    assert other.ready and world.owner.settle() == 0 and not process.device.streams[0].todo


def test_chunks_in_flight_of_a_cancelled_store_are_abandoned_when_they_complete(
    world: CopyingWorld, process: Process
) -> None:
    store = granted(process, 1, 5)
    store.cancel()
    process.step()
    assert world.owner.settle() == 4 and not store.ready and not store.ended
    carried_out(process)
    assert store.ready and store.ended
    assert (store.wait(0).refused, store.wait(0).reason) == (5, "the store was cancelled")
    assert world.owner.settle() == 0 and process.copier.counts.cancelled == 5 and world.readable(1, PAGE) == 0


def test_only_the_store_with_an_invalid_event_is_rejected(world: CopyingWorld, process: Process) -> None:
    store = process.copier.store(keys_of(1, 1), process.cache.slots(blocks_of(1)), after="no event")
    hear(process)
    assert store.ready and store.ended and store.wait(0).reason == "not an event of this engine"
    assert world.owner.settle() == 0 and granted(process, 2, 1).wait(0).pending == 1


def test_invalid_arguments_raise_at_once(process: Process) -> None:
    slots = process.cache.slots(blocks_of(2))
    with pytest.raises(ValueError, match="blocks of 2 pages for 3 keys"):
        process.copier.store(keys_of(1, 3), slots)
    with pytest.raises(ValueError, match="page 0 has only some"):
        pages = token_rows(slots.pages["position"], 0, slots.pages["end"] - 1)
        process.copier.store(keys_of(1, 2), msgspec.structs.replace(slots, pages=pages))
    with pytest.raises(ValueError, match="the device is cuda:0"):
        other = type("Other", (), {"name": "cuda:0"})()
        AsyncCopier(process, process.cache.paged, other, COPYING)
    assert not process.wire.sent


def test_skipped_pages_are_abandoned_at_once(world: CopyingWorld, process: Process) -> None:
    keys, slots = keys_of(1, 3), process.cache.slots(blocks_of(3))
    process.cache.fill(blocks_of(3), pages_of(keys, PAGE))
    store = process.copier.store(keys, slots.without([False, True, False]))
    hear(process)
    carried_out(process)
    assert [outcome.name for outcome in store.wait(0).outcomes] == ["STORED", "REFUSED", "STORED"]
    assert world.readable(1, PAGE) == 1


def test_a_load_pins_pages_that_another_process_matched(world: CopyingWorld) -> None:
    process, (_, scheduler), blocks = Process(world, COPYING), world.attached(), blocks_of(3)
    world.store_elsewhere(1, 3, PAGE)
    with scheduler.match(Match, keys_of(1), keys_of(1).data) as match:
        handle = match.to_handle()
        load = process.copier.load(handle, process.cache.slots(blocks))
    for prompt in range(2, 8):
        world.store_elsewhere(prompt, 3, PAGE)
    process.step()
    carried_out(process)
    assert load.pages == 3 and load.ended and load.ready(LAYERS - 1)
    assert_exact(keys_of(1, 3), process.cache.spill(blocks))

    for prompt in range(8, 16):
        world.store_elsewhere(prompt, 3, PAGE)
    assert world.readable(1, PAGE) == 0, "pages that are not pinned any more were evicted"
    assert process.copier.load(handle, process.cache.slots(blocks)).pages == 0


def test_a_handle_of_other_segments_is_a_miss(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(1, 1, PAGE)
    with process.session.match(Match, keys_of(1), keys_of(1).data) as match:
        handle = match.to_handle()
        other = msgspec.structs.replace(handle, segments_id=handle.segments_id + 1)
        assert process.copier.load(other, process.cache.slots(blocks_of(1))).pages == 0
        assert process.copier.load(handle, process.cache.slots(blocks_of(1))).pages == 1


def test_pages_of_another_size_end_a_load(world: CopyingWorld, process: Process) -> None:
    world.store_elsewhere(1, 2, PAGE)
    world.store_elsewhere(1, 3, PAGE + 1)
    with process.session.match(Match, None, keys_of(1).data) as match:
        assert len(match) == 3
        assert process.copier.load(match, process.cache.slots(blocks_of(3))).pages == 2
        assert process.copier.load(match, process.cache.slots(blocks_of(1)), start_page=2).pages == 0


def test_threads_that_wait_are_woken(process: Process) -> None:
    store = granted(process, 1, 2)
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(store.wait, PATIENCE_S)
        assert eventually(lambda: store._job._changed.is_awaited) and not waits.done()
        carried_out(process)
        assert waits.result(PATIENCE_S).stored == 2


def test_an_event_or_a_response_wakes_a_queue(process: Process) -> None:
    queue = process.lanes[0]
    with ThreadPoolExecutor(1) as thread:
        stored(process, 1, 2)
        queue.step()
        woken = thread.submit(queue.wait_for_work, 60.0)
        process.answer()
        woken.result(PATIENCE_S)
        queue.step()
        woken = thread.submit(queue.wait_for_work, 60.0)
        process.device.advance_all()
        woken.result(PATIENCE_S)
    assert queue.step() is None and process.copier.counts.stored == 2 * PAGE


def test_pages_that_were_not_started_are_released_when_the_device_fails(world: CopyingWorld, process: Process) -> None:
    store = granted(process, 1, 5)
    process.device.die()
    process.step()
    assert store.ready and store.wait(0).refused == 5 and "device is dead" in store.wait(0).reason
    assert not store.ended and not process.session.retire() and not process.copier.close(0)
    assert world.owner.settle() == 4, "two chunks in flight stay open, the page after them is free"
    assert process.copier.counts.failed == 5
    assert stored(process, 2, 1).wait(0).refused == 1
    with process.session.match(Match, None, keys_of(1).data) as match:
        assert process.copier.load(match, process.cache.slots(blocks_of(1))).pages == 0
