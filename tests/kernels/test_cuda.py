"""The CUDA device over a driver and a torch that are pretended: errors, threads, batches, what is told to whom."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paged_cases import Stored, case_of
from pagetier.kernels import cuda
from pagetier.kernels.cuda import CudaDevice, CudaEvent
from pagetier.kernels.device import DeviceError, Direction
from pagetier.kernels.driver import Driver
from pagetier.kernels.memcpy import Batched, OneByOne, memcpy_of
from pagetier.kernels.slots import slot_map
from pagetier.kernels.thresholds import CopySettings
from pagetier.kernels.ways import Moves
from placed import Placed
from pretended_cuda import GLOBAL, RELAXED, PretendedDriver, PretendedEvent, PretendedStream, PretendedTorch
from queued import LateQueue

BOTH = pytest.mark.parametrize("direction", Direction)


@pytest.fixture(autouse=True)
def no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed here."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)


@pytest.fixture
def library() -> PretendedDriver:
    return PretendedDriver()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> PretendedTorch:
    pretended = PretendedTorch()
    monkeypatch.setattr(cuda, "torch", pretended)
    return pretended


def in_thread(work: Callable[[], Any]) -> Any:
    """What it returns, in a thread of its own."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def mode_after(library: PretendedDriver, use: Callable[[], Any]) -> int:
    use()
    return mode_now(library)


def mode_now(library: PretendedDriver) -> int:
    return library.modes.get(threading.get_ident(), GLOBAL)


# --- the driver ---------------------------------------------------------------------------------------------------


def test_errors_have_the_drivers_names(library: PretendedDriver) -> None:
    library.fail.add("cuDeviceGet")
    with pytest.raises(DeviceError, match=r"cuDeviceGet: CUDA_ERROR_OF_TESTS \(1\)"):
        Driver(0, library)


def test_a_driver_that_lacks_a_function() -> None:
    with pytest.raises(DeviceError, match="no cuDevicePrimaryCtxRetain"):
        Driver(0, PretendedDriver(lacks={"cuDevicePrimaryCtxRetain"}))


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(DeviceError, match=r"there is no CUDA driver: libcuda\.so\.1"):
        Driver(0)


def test_a_thread_is_relaxed_once(library: PretendedDriver) -> None:
    driver = Driver(0, library)

    def enter() -> int:
        for _ in range(3):
            driver.enter()
        return mode_now(library)

    assert mode_now(library) == GLOBAL
    assert [in_thread(enter) for _ in range(2)] == [RELAXED] * 2
    assert library.calls["cuThreadExchangeStreamCaptureMode"] == library.calls["cuCtxSetCurrent"] == 2
    assert mode_now(library) == GLOBAL


def test_a_failed_entry_is_tried_again(library: PretendedDriver) -> None:
    driver = Driver(0, library)
    library.fail.add("cuCtxSetCurrent")
    with pytest.raises(DeviceError, match="cuCtxSetCurrent"):
        driver.enter()
    library.fail.clear()
    driver.enter()
    assert mode_now(library) == RELAXED


def test_a_thread_that_is_relaxed_for_a_call(library: PretendedDriver) -> None:
    driver = Driver(0, library)
    with pytest.raises(KeyError), driver.relaxed():
        assert mode_now(library) == RELAXED
        raise KeyError
    assert mode_now(library) == GLOBAL


def test_the_batched_copy_by_way_of_the_bindings(library: PretendedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look_up(*arguments: Any) -> tuple[int, int, int]:
        asked.append(arguments)
        return 0, library.batch_address, 0

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", SimpleNamespace(cuGetProcAddress=look_up))
    assert Driver(0, library).batches
    assert asked == [(b"cuMemcpyBatchAsync", 12080, 0)]
    assert not library.calls["cuGetProcAddress_v2"]


def raising(error: Exception) -> Callable[..., Any]:
    def look_up(*_: Any) -> Any:
        raise error

    return look_up


@pytest.mark.parametrize(
    "bindings",
    [None, SimpleNamespace(), SimpleNamespace(cuGetProcAddress=raising(RuntimeError("Failed to dlopen libcuda.so.1")))],
    ids=["none", "odd", "no driver found"],
)
def test_the_batched_copy_without_bindings(
    bindings: Any, library: PretendedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    assert Driver(0, library).batches
    assert library.calls["cuGetProcAddress_v2"] == 1


def test_older_drivers_copy_one_by_one() -> None:
    refusing = SimpleNamespace(cuGetProcAddress=lambda *_: (500, 0, 1))
    for library in (PretendedDriver(lacks={"cuGetProcAddress_v2"}), PretendedDriver(fail={"cuGetProcAddress_v2"})):
        driver = Driver(0, library)
        assert not driver.batches
        assert isinstance(memcpy_of(driver), OneByOne)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda.bindings.driver", refusing)
        assert not Driver(0, PretendedDriver()).batches


# --- moves --------------------------------------------------------------------------------------------------------


class Bytes:
    """Some runs of a buffer that go to another one, in an order by chance."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(1)
        self.source, self.target = rng.integers(0, 256, (2, 8 * count), np.uint8)
        begins = np.arange(count, dtype=np.uint64) * 8
        places = rng.permutation(begins)
        sizes = rng.integers(1, 9, count).astype(np.uint64)
        self.wanted = self.target.copy()
        for place, begin, size in zip(places.tolist(), begins.tolist(), sizes.tolist(), strict=True):
            self.wanted[place : place + size] = self.source[begin : begin + size]
        self.moves = Moves(self.target.ctypes.data + places, self.source.ctypes.data + begins, sizes)


@pytest.mark.parametrize(("count", "batches"), [(0, []), (2, [2]), (3, [3]), (8, [3, 3, 2])])
def test_large_batches_are_cut(library: PretendedDriver, count: int, batches: list[int]) -> None:
    its = Bytes(count)
    Batched(Driver(0, library), at_once=3)(its.moves, LateQueue(0x1234))
    assert library.batches == [(size, 0x1234) for size in batches]
    assert np.array_equal(its.target, its.wanted)


def test_one_by_one(library: PretendedDriver) -> None:
    its = Bytes(5)
    OneByOne(Driver(0, library))(its.moves, LateQueue(1))
    assert library.calls["cuMemcpyAsync"] == 5
    assert np.array_equal(its.target, its.wanted)


@pytest.mark.parametrize("name", ["cuMemcpyBatchAsync", "cuMemcpyAsync"])
def test_moves_that_fail(library: PretendedDriver, name: str) -> None:
    driver = Driver(0, library)
    library.fail.add(name)
    memcpy = Batched(driver) if "Batch" in name else OneByOne(driver)
    with pytest.raises(DeviceError, match=f"{name}: CUDA_ERROR_OF_TESTS"):
        memcpy(Bytes(2).moves, LateQueue(0))


# --- the device ---------------------------------------------------------------------------------------------------


class Made:
    """A device, and what it is told about frames."""

    def __init__(self, library: PretendedDriver, **told: Any) -> None:
        self.pinned = True
        self.device = CudaDevice(0, CopySettings(**told), lambda _: self.pinned, Driver(0, library))


def placed(device: str = "cuda:0") -> Placed:
    stored = Stored(("layer", "kind", "block", "head", "token"), layers=2, kinds=2, heads=2, width=64)
    return Placed(case_of([stored], slot_map([3, 1, 0, 2], 2, 32, 16), np.random.default_rng(2)), device)


def test_torch_without_cuda(library: PretendedDriver) -> None:
    with pytest.raises(DeviceError, match="torch finds no CUDA device"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        Made(library)


def test_streams_are_new_ones(library: PretendedDriver, torch: PretendedTorch) -> None:
    """Two each, loads as urgent as can be; the device's name is that of its caches."""
    made = Made(library)
    made.device.stream(Direction.STORE)
    made.device.stream(Direction.LOAD)
    assert library.priorities == [0, 0, -5, -5]
    assert len({stream.handle for stream in torch.streams}) == 4
    assert made.device.name == "cuda:0"


@BOTH
@pytest.mark.parametrize("pinned", [True, False])
def test_copy_engines_move_the_bytes(
    direction: Direction, pinned: bool, library: PretendedDriver, torch: PretendedTorch
) -> None:
    """In batches what is pinned, one by one what is not."""
    made = Made(library, way="dma")
    made.pinned = pinned
    its = placed()
    wanted = its.after(its.copy(direction))
    made.device.stream(direction).enqueue(its.copy(direction))
    its.expect(wanted)
    assert library.batches == ([(32, torch.streams[0].handle)] if pinned else [])
    assert library.calls["cuMemcpyAsync"] == (0 if pinned else 32)


def test_memory_that_has_other_addresses_there_is_as_if_not_pinned(
    library: PretendedDriver, torch: PretendedTorch
) -> None:
    library.same_addresses = 0
    Made(library, way="dma").device.stream(Direction.STORE).enqueue(placed().copy(Direction.STORE))
    assert not library.batches
    assert torch.streams


@BOTH
def test_without_room_for_a_ring_the_engines_go_alone(
    direction: Direction, library: PretendedDriver, torch: PretendedTorch
) -> None:
    made = Made(library, way="staged", staging=1 << 20)
    torch.room = (1 << 19) - 1
    its = placed()
    wanted = its.after(its.copy(direction))
    made.device.stream(direction).enqueue(its.copy(direction))
    its.expect(wanted)


def test_the_engines_event_is_waited_for_by_all_queues(library: PretendedDriver, torch: PretendedTorch) -> None:
    stream = Made(library).device.stream(Direction.LOAD)
    event = PretendedEvent()
    stream.after(event)
    stream.record()
    assert [its.journal for its in torch.streams] == [[event, "record"], [event]]


def test_a_cache_elsewhere(library: PretendedDriver, torch: PretendedTorch) -> None:
    stream = Made(library).device.stream(Direction.STORE)
    for name in ("cpu", "cuda:1"):
        with pytest.raises(ValueError, match=f"a cache on {name}, but the stream is one of cuda:0"):
            stream.enqueue(placed(name).copy(Direction.STORE))
    assert not any(its.journal for its in torch.streams)


def test_what_uses_a_stream_is_relaxed(library: PretendedDriver, torch: PretendedTorch) -> None:
    """Any call of it, whichever comes first."""
    stream = Made(library, way="dma").device.stream(Direction.STORE)
    uses: list[Callable[[], Any]] = [
        lambda: stream.after(PretendedEvent()),
        lambda: stream.enqueue(placed().copy(Direction.STORE)),
        stream.record,
    ]
    for use in uses:
        assert in_thread(partial(mode_after, library, use)) == RELAXED
    assert torch.streams


def test_what_asks_an_event_is_left_as_it_was(library: PretendedDriver, torch: PretendedTorch) -> None:
    event = Made(library).device.stream(Direction.STORE).record()
    for use in (event.done, partial(event.wait, 1)):
        assert in_thread(partial(mode_after, library, use)) == GLOBAL
    assert torch.streams


def event_of(library: PretendedDriver, looks: int) -> CudaEvent:
    its = PretendedEvent()
    its.looks = looks
    return CudaEvent(its, Driver(0, library))


def test_waiting_has_a_deadline(library: PretendedDriver) -> None:
    begin = time.monotonic()
    assert not event_of(library, 10**9).wait(0.05)
    assert 0.05 <= time.monotonic() - begin < 2
    assert not event_of(library, 10**9).wait(0)
    assert event_of(library, 0).wait(0)
    assert event_of(library, 5).wait(10)


def test_an_engines_stream_waits_for_an_event(library: PretendedDriver) -> None:
    event, stream = event_of(library, 0), PretendedStream(1)
    event.hold(stream)
    assert len(stream.journal) == 1


def test_errors_of_torch(library: PretendedDriver, torch: PretendedTorch) -> None:
    stream = Made(library).device.stream(Direction.STORE)
    event = stream.record()
    broken = raising(RuntimeError("CUDA error: an illegal memory access was encountered"))
    for its in (*torch.streams, event._event):
        its.record = its.wait_event = its.query = broken
    torch.cuda.Event = lambda: SimpleNamespace(record=broken)
    waits: list[Callable[[], Any]] = [event.done, partial(event.wait, 1), partial(event.hold, torch.streams[0])]
    for use in (*waits, stream.record, partial(stream.after, event)):
        with pytest.raises(DeviceError, match="illegal memory access"):
            use()


def test_a_driver_that_fails_in_a_copy(library: PretendedDriver, torch: PretendedTorch) -> None:
    stream = Made(library, way="dma").device.stream(Direction.STORE)
    library.fail.add("cuMemcpyBatchAsync")
    with pytest.raises(DeviceError, match="cuMemcpyBatchAsync"):
        stream.enqueue(placed().copy(Direction.STORE))
    assert torch.streams
