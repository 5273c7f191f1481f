"""The host as a device: its streams keep their order, wait for engines' events, and fail as a whole."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from eventually import PATIENCE_S
from pagetier.kernels.device import Copy, DeviceError, Direction, EngineEvent
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache, Transfer

PAGES, TOKENS, BLOCK = 3, 4, 2


class Scene:
    """A cache of two layers, an arena for three pages."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.tensors = list(rng.integers(0, 2**16, (2, 2, 8, BLOCK, 2, 8), dtype=np.uint16))
        layout = engine_layouts.kv_first(self.tensors)
        self.paged = PagedCache(layout, PageLayout.of(layout, TOKENS))
        size = self.paged.page.nbytes
        self.memory = np.zeros(PAGES * size, np.uint8)
        arena = Arena(self.memory.ctypes.data, self.memory.nbytes, size, self.memory)
        self.frames: Frames = frames_of(arena, np.arange(PAGES).reshape(-1, 1))
        self.slots = slot_map(range(6), PAGES, TOKENS, BLOCK)

    def storing(self) -> Copy:
        return self.copy(Direction.STORE, self.paged.storing(self.slots)[0])

    def loading(self, layers: range) -> Copy:
        copy = self.copy(Direction.LOAD, self.paged.loading(self.slots))
        planes = [rows for rows, _ in copy.transfer.by_layer(2)]
        return msgspec.structs.replace(copy, planes=range(planes[layers[0]].start, planes[layers[-1]].stop))

    def copy(self, direction: Direction, transfer: Transfer) -> Copy:
        return Copy(direction, transfer, self.frames, range(len(transfer.planes)))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_is_stored_is_loaded_layer_by_layer(scene: Scene) -> None:
    device = HostDevice()
    there, back = device.stream(Direction.STORE), device.stream(Direction.LOAD)
    there.enqueue(scene.storing())
    stored = there.record()
    assert stored.wait(PATIENCE_S) and stored.done()
    before = [tensor.copy() for tensor in scene.tensors]
    for tensor in scene.tensors:
        tensor[:] = 0
    back.enqueue(scene.loading(range(1, 2)))
    assert back.record().wait(PATIENCE_S)
    assert not scene.tensors[0].any() and np.array_equal(scene.tensors[1][:, :6], before[1][:, :6])
    back.enqueue(scene.loading(range(1)))
    assert back.record().wait(PATIENCE_S)
    assert np.array_equal(scene.tensors[0][:, :6], before[0][:, :6])
    assert device.close(PATIENCE_S)


def test_a_stream_waits_for_what_an_engine_has(scene: Scene) -> None:
    device = HostDevice()
    event, future, other = threading.Event(), Future[None](), device.stream(Direction.LOAD)
    barrier, stream = threading.Barrier(2), device.stream(Direction.STORE)
    stream.after(event)
    one = stream.record()
    stream.after(future)
    two = stream.record()
    other.after(two)
    three = other.record()
    stream.after(barrier)
    four = stream.record()
    for opens, comes in ((event.set, one), (lambda: future.set_result(None), two), (barrier.wait, four)):
        assert not comes.wait(0.01) and not comes.done()
        opens()
        assert comes.wait(PATIENCE_S)
    assert three.wait(PATIENCE_S)
    with pytest.raises(ValueError, match="int has no wait"):
        stream.after(3)


def test_an_engine_s_stream_is_held(scene: Scene) -> None:
    device = HostDevice()
    copies, event = device.stream(Direction.LOAD), threading.Event()
    copies.after(event)
    arrived = copies.record()
    with ThreadPoolExecutor(1) as engine:
        arrived.make_stream_wait(engine)
        computed = engine.submit(arrived.done)
        stream = device.stream(Direction.STORE)
        arrived.make_stream_wait(stream)
        behind = stream.record()
        assert not computed.done() and not behind.done()
        event.set()
        assert computed.result(PATIENCE_S) and behind.wait(PATIENCE_S)
    with pytest.raises(ValueError, match="is not a stream of the host"):
        arrived.make_stream_wait(None)


def test_a_copy_that_fails_fails_its_stream_alone(scene: Scene) -> None:
    device = HostDevice()
    stream, sound = device.stream(Direction.STORE), device.stream(Direction.STORE)
    before = stream.record()
    assert before.wait(PATIENCE_S)
    copy = scene.storing()
    stream.enqueue(msgspec.structs.replace(copy, frames=Frames(scene.frames.arena, scene.frames.table[:1])))
    event = stream.record()
    for asks in (lambda: event.wait(PATIENCE_S), event.done, stream.record, lambda: stream.enqueue(copy)):
        with pytest.raises(DeviceError, match="a copy failed"):
            asks()
    assert before.done()
    sound.enqueue(copy)
    assert sound.record().wait(PATIENCE_S)


@pytest.mark.parametrize("fails", [lambda future: future.set_exception(OSError()), lambda future: future.cancel()])
def test_work_of_an_engine_that_failed_is_not_copied(scene: Scene, fails: object) -> None:
    stream, future = HostDevice().stream(Direction.STORE), Future[None]()
    stream.after(future)
    stream.enqueue(scene.storing())
    event = stream.record()
    assert callable(fails)
    fails(future)
    with pytest.raises(DeviceError, match="the engine's work failed"):
        event.wait(PATIENCE_S)
    assert not scene.memory.any()


class Raising:
    """An engine's own event. `error` is raised by its wait()."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error


class Awaitable:
    """An event whose wait() returns an awaitable without being a coroutine function."""

    def wait(self) -> object:
        return asyncio.Event().wait()


@pytest.mark.parametrize("error", [Exception("of its own"), AssertionError("of its own"), SystemExit("of its own")])
def test_a_stream_reports_any_exception_of_an_event(scene: Scene, error: BaseException) -> None:
    stream, opens = HostDevice().stream(Direction.STORE), threading.Event()
    stream.after(opens)
    stream.after(Raising(error))
    stream.enqueue(scene.storing())
    event = stream.record()
    opens.set()
    with pytest.raises(DeviceError, match="of its own"):
        event.wait(PATIENCE_S)
    assert stream.close(PATIENCE_S) and not scene.memory.any()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_awaitable_event_is_rejected(scene: Scene) -> None:
    device = HostDevice()
    stream = device.stream(Direction.STORE)
    for refuses in (device.require_event, stream.after):
        with pytest.raises(ValueError, match=r"the wait\(\) method of Event is a coroutine"):
            refuses(asyncio.Event())
        with pytest.raises(ValueError, match="str has no wait"):
            refuses("no event")
    opens = threading.Event()
    stream.after(opens)
    stream.after(Awaitable())
    stream.enqueue(scene.storing())
    event = stream.record()
    opens.set()
    with pytest.raises(DeviceError, match=r"the wait\(\) method of Awaitable returned an awaitable"):
        event.wait(PATIENCE_S)
    assert not scene.memory.any()


def cancelled() -> Future[None]:
    future = Future[None]()
    future.cancel()
    return future


@pytest.mark.parametrize("event", [cancelled(), Raising(KeyError())])
def test_a_lost_gate_is_reported_and_the_stream_continues(scene: Scene, event: object) -> None:
    """It is reported before the next event is complete; copies of its transfer are skipped, later ones are not."""
    stream, reports = HostDevice().stream(Direction.LOAD), []
    copy, other = scene.loading(range(1)), scene.loading(range(1, 2))
    opens, gate = threading.Event(), EngineEvent(event, copy.transfer)
    before = [tensor.copy() for tensor in scene.tensors]
    stream.after(opens)
    stream.after(gate)
    gate.lost = lambda: reports.append(behind.done())
    stream.enqueue(copy)
    behind = stream.record()
    stream.enqueue(other)
    last = stream.record()
    assert not gate.reason
    opens.set()
    assert last.wait(PATIENCE_S) and reports == [False]
    assert "the engine's event failed: " in gate.reason
    assert np.array_equal(scene.tensors[0], before[0]) and not scene.tensors[1][:, :6].any()


def test_a_gate_that_opens_is_passed(scene: Scene) -> None:
    stream, event, copy = HostDevice().stream(Direction.LOAD), threading.Event(), scene.loading(range(2))
    gate = EngineEvent(event, copy.transfer)
    stream.after(gate)
    stream.enqueue(copy)
    arrived = stream.record()
    assert not arrived.wait(0.01)
    event.set()
    assert arrived.wait(PATIENCE_S) and not gate.reason and not scene.tensors[0][:, :6].any()


def test_a_cache_on_another_device_is_rejected_at_once(scene: Scene) -> None:
    stream, copy = HostDevice().stream(Direction.STORE), scene.storing()
    elsewhere = msgspec.structs.replace(copy.transfer, device="cuda:0")
    with pytest.raises(ValueError, match="on cuda:0"):
        stream.enqueue(msgspec.structs.replace(copy, transfer=elsewhere))
    assert stream.record().wait(PATIENCE_S)


def test_closing_ends_the_threads_after_their_work(scene: Scene) -> None:
    device = HostDevice()
    stream = device.stream(Direction.STORE)
    stream.enqueue(scene.storing())
    event = stream.record()
    assert device.close(PATIENCE_S) and event.done() and scene.memory.any()
    with pytest.raises(DeviceError, match="closed"):
        stream.enqueue(scene.storing())
    stuck = device.stream(Direction.LOAD)
    stuck.after(threading.Event())
    assert device.close(PATIENCE_S)


def test_a_device_that_is_dropped_leaves_no_thread() -> None:
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "pagetier-load-stream"]

    before = ours()
    stream = HostDevice().stream(Direction.LOAD)
    (mine,) = set(ours()) - set(before)
    del stream
    gc.collect()
    mine.join(PATIENCE_S)
    assert not mine.is_alive()
