"""The CUDA device with a simulated driver and torch: calls, their threads, and errors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from copy_case_memory import Placed
from copy_cases import Stored, case_of
from fake_cuda import (
    GLOBAL,
    RELAXED,
    SimulatedDriver,
    SimulatedEvent,
    SimulatedStream,
    SimulatedTorch,
    in_thread,
    mode_after,
    raising,
)
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import DeviceError, Direction, EngineEvent
from pagetier.kernels.gpu import cuda
from pagetier.kernels.gpu.cuda import CudaDevice, CudaEvent
from pagetier.kernels.gpu.cuda_driver import Driver
from pagetier.kernels.layout.slot_map import slot_map
from virtual_clock import VirtualClock

BOTH = pytest.mark.parametrize("direction", Direction)


@pytest.fixture(autouse=True)
def no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates the test from the installed driver."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)


@pytest.fixture
def library() -> SimulatedDriver:
    return SimulatedDriver()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimulatedTorch:
    fake = SimulatedTorch()
    monkeypatch.setattr(cuda, "torch", fake)
    return fake


class Made:
    """A device, and the answers that it gets about frames."""

    def __init__(self, library: SimulatedDriver, **given: Any) -> None:
        self.pinned = True
        self.device = CudaDevice(0, CopySettings(**given), lambda _: self.pinned, Driver(0, library))


def placed(device: str = "cuda:0") -> Placed:
    stored = Stored(("layer", "kind", "block", "head", "token"), layers=2, kinds=2, heads=2, width=64)
    return Placed(case_of([stored], slot_map([3, 1, 0, 2], 2, 32, 16), np.random.default_rng(2)), device)


def test_torch_without_cuda_is_an_error(library: SimulatedDriver) -> None:
    with pytest.raises(DeviceError, match="torch finds no CUDA device"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        Made(library)


@pytest.mark.parametrize(("programs", "storing"), [(1, 1), (16, 4), (25, 6)])
def test_stores_have_fewer_programs(
    library: SimulatedDriver, torch: SimulatedTorch, programs: int, storing: int
) -> None:
    """Writes over the bus slow the model more than reads; the ring is in the GPU's own memory."""
    streams = {direction: Made(library, programs=programs).device.stream(direction) for direction in Direction}
    shapes = {direction: (its._kernel.grid.programs, its._kernel.grid.tile) for direction, its in streams.items()}
    assert shapes == {Direction.STORE: (storing, 2048), Direction.LOAD: (programs, 1024)}
    assert {its._ring_kernel.grid.programs for its in streams.values()} == {programs}


def test_streams_are_new_ones(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    """Two streams for each direction, loads with the highest priority; an engine's thread may create them."""
    made = Made(library)
    for direction in (Direction.STORE, Direction.LOAD):
        assert in_thread(partial(mode_after, library, partial(made.device.stream, direction))) == GLOBAL
    assert library.priorities == [0, 0, -5, -5]
    assert len({stream.handle for stream in torch.streams}) == 4
    assert made.device.name == "cuda:0"


@BOTH
@pytest.mark.parametrize("pinned", [True, False])
def test_copy_engines_move_the_bytes(
    direction: Direction, pinned: bool, library: SimulatedDriver, torch: SimulatedTorch
) -> None:
    """Pinned memory is copied in batches, other memory run by run."""
    made = Made(library, path="dma")
    made.pinned = pinned
    its = placed()
    wanted = its.after(its.copy(direction))
    made.device.stream(direction).enqueue(its.copy(direction))
    its.expect(wanted)
    assert library.batches == ([(32, torch.streams[0].handle)] if pinned else [])
    assert library.calls["cuMemcpyAsync"] == (0 if pinned else 32)


def test_memory_with_another_device_address_counts_as_not_pinned(
    library: SimulatedDriver, torch: SimulatedTorch
) -> None:
    library.same_addresses = 0
    Made(library, path="dma").device.stream(Direction.STORE).enqueue(placed().copy(Direction.STORE))
    assert not library.batches
    assert torch.streams


@BOTH
def test_without_memory_for_a_ring_the_engines_copy_alone(
    direction: Direction, library: SimulatedDriver, torch: SimulatedTorch
) -> None:
    made = Made(library, path="staged", staging=1 << 20)
    torch.room = (1 << 19) - 1
    its = placed()
    wanted = its.after(its.copy(direction))
    made.device.stream(direction).enqueue(its.copy(direction))
    its.expect(wanted)


def test_the_engines_event_is_waited_for_by_all_queues(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    stream = Made(library).device.stream(Direction.LOAD)
    event = SimulatedEvent()
    stream.after(event)
    stream.record()
    assert [its.journal for its in torch.streams] == [[event, "record"], [event]]


def test_a_gate_is_its_event(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    stream, event = Made(library).device.stream(Direction.LOAD), SimulatedEvent()
    stream.after(EngineEvent(event))
    assert [its.journal for its in torch.streams] == [[event], [event]]


@pytest.mark.parametrize("wrong", ["event", threading.Event(), 3])
def test_objects_that_are_not_torchs_are_rejected(
    wrong: object, library: SimulatedDriver, torch: SimulatedTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's streams detect it by calling methods of the object."""
    device = Made(library).device
    stream = device.stream(Direction.LOAD)
    for its in torch.streams:
        monkeypatch.setattr(its, "wait_event", lambda event: event.wait(torch))
    device.require_event(SimulatedEvent())
    for refuses in (device.require_event, stream.after):
        with pytest.raises(ValueError, match=f"{type(wrong).__name__} is not a torch.cuda.Event"):
            refuses(wrong)
    with pytest.raises(ValueError, match=f"{type(wrong).__name__} is not a torch.cuda.Stream"):
        stream.record().make_stream_wait(wrong)


def test_missing_memory_for_tables_fails_only_that_copy(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    """The parts already enqueued, on any queue, are complete before the next event."""
    stream = Made(library, path="dma").device.stream(Direction.STORE)
    full = SimpleNamespace(enqueue=raising(torch.OutOfMemoryError("no room")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_path", lambda _: full)
        with pytest.raises(ValueError, match="no memory for the tables of a copy: no room"):
            stream.enqueue(placed().copy(Direction.STORE))
    queue, side = torch.streams
    assert side.journal == ["record"] and isinstance(queue.journal[0], SimulatedEvent)
    its = placed()
    wanted = its.after(its.copy(Direction.STORE))
    stream.enqueue(its.copy(Direction.STORE))
    its.expect(wanted)


def test_a_cache_on_another_device_is_rejected(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    stream = Made(library).device.stream(Direction.STORE)
    for name in ("cpu", "cuda:1"):
        with pytest.raises(ValueError, match=f"the cache is on {name}, but the stream is on cuda:0"):
            stream.enqueue(placed(name).copy(Direction.STORE))
    assert not any(its.journal for its in torch.streams)


def test_calls_that_use_a_stream_relax_the_thread(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    """Each such call does, whichever is the first."""
    stream = Made(library, path="dma").device.stream(Direction.STORE)
    uses: list[Callable[[], Any]] = [
        lambda: stream.after(SimulatedEvent()),
        lambda: stream.enqueue(placed().copy(Direction.STORE)),
        stream.record,
    ]
    for use in uses:
        assert in_thread(partial(mode_after, library, use)) == RELAXED
    assert torch.streams


def test_queries_of_events_leave_the_thread_unchanged(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    event = Made(library).device.stream(Direction.STORE).record()
    for use in (event.done, partial(event.wait, 1)):
        assert in_thread(partial(mode_after, library, use)) == GLOBAL
    assert torch.streams


def event_of(library: SimulatedDriver, queries_left: int) -> CudaEvent:
    its = SimulatedEvent()
    its.queries_left = queries_left
    return CudaEvent(its, Driver(0, library))


def test_waiting_has_a_timeout(library: SimulatedDriver, virtual_clock: VirtualClock) -> None:
    began = virtual_clock.now
    assert not event_of(library, 10**9).wait(0.05)
    assert virtual_clock.now - began == pytest.approx(0.05)
    assert not event_of(library, 10**9).wait(0)
    assert event_of(library, 0).wait(0)
    assert event_of(library, 5).wait(10)


def test_an_engines_stream_waits_for_an_event(library: SimulatedDriver) -> None:
    event, stream = event_of(library, 0), SimulatedStream(1)
    event.make_stream_wait(stream)
    assert len(stream.journal) == 1


def test_errors_of_torch_are_device_errors(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    stream = Made(library).device.stream(Direction.STORE)
    event = stream.record()
    broken = raising(RuntimeError("CUDA error: an illegal memory access was encountered"))
    for its in (*torch.streams, event._event):
        its.record = its.wait_event = its.query = broken
    torch.cuda.Event = lambda: SimpleNamespace(record=broken)
    waits: list[Callable[[], Any]] = [
        event.done,
        partial(event.wait, 1),
        partial(event.make_stream_wait, torch.streams[0]),
    ]
    waits += [stream.record, partial(stream.after, event)]
    for use in waits:
        with pytest.raises(DeviceError, match="illegal memory access"):
            use()


def test_a_driver_that_fails_in_a_copy(library: SimulatedDriver, torch: SimulatedTorch) -> None:
    stream = Made(library, path="dma").device.stream(Direction.STORE)
    library.fail.add("cuMemcpyBatchAsync")
    with pytest.raises(DeviceError, match="cuMemcpyBatchAsync"):
        stream.enqueue(placed().copy(Direction.STORE))
    assert torch.streams
