"""The simulated CUDA driver: errors, threads and their capture modes, batched copies and how batches are split."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cuda import GLOBAL, RELAXED, SimulatedDriver, in_thread, mode_now, raising
from fake_queues import LateQueue
from pagetier.kernels.device import DeviceError
from pagetier.kernels.gpu.copy_paths import Moves
from pagetier.kernels.gpu.cuda_driver import Driver
from pagetier.kernels.gpu.memcpy import Batched, OneByOne, Paced, memcpy_of


@pytest.fixture(autouse=True)
def no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates the test from the installed driver."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)


@pytest.fixture
def library() -> SimulatedDriver:
    return SimulatedDriver()


def test_errors_have_the_drivers_names(library: SimulatedDriver) -> None:
    library.fail.add("cuDeviceGet")
    with pytest.raises(DeviceError, match=r"cuDeviceGet: CUDA_ERROR_OF_TESTS \(1\)"):
        Driver(0, library)


def test_a_driver_that_lacks_a_function_is_an_error() -> None:
    with pytest.raises(DeviceError, match="no cuDevicePrimaryCtxRetain"):
        Driver(0, SimulatedDriver(lacks={"cuDevicePrimaryCtxRetain"}))


def test_a_missing_driver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(DeviceError, match=r"cannot load the CUDA driver: libcuda\.so\.1"):
        Driver(0)


def test_a_thread_is_relaxed_once(library: SimulatedDriver) -> None:
    driver = Driver(0, library)

    def enter() -> int:
        for _ in range(3):
            driver.enter()
        return mode_now(library)

    assert mode_now(library) == GLOBAL
    assert [in_thread(enter) for _ in range(2)] == [RELAXED] * 2
    assert library.calls["cuThreadExchangeStreamCaptureMode"] == 2
    assert mode_now(library) == GLOBAL


def test_a_failed_entry_is_tried_again(library: SimulatedDriver) -> None:
    driver = Driver(0, library)
    library.fail.add("cuCtxSetCurrent")
    with pytest.raises(DeviceError, match="cuCtxSetCurrent"):
        driver.enter()
    library.fail.clear()
    driver.enter()
    assert mode_now(library) == RELAXED


def test_a_thread_that_is_relaxed_for_a_call(library: SimulatedDriver) -> None:
    driver = Driver(0, library)
    with pytest.raises(KeyError), driver.relaxed():
        assert mode_now(library) == RELAXED
        raise KeyError
    assert mode_now(library) == GLOBAL


def test_a_thread_that_makes_a_stream_stays_on_its_device(library: SimulatedDriver) -> None:
    driver = Driver(0, library)
    assert driver.stream() != driver.stream(3)
    library.fail.add("cuStreamCreateWithPriority")
    with pytest.raises(DeviceError, match="cuStreamCreateWithPriority"):
        driver.stream()
    assert library.priorities == [0, -3]
    assert library.calls["cuCtxPushCurrent_v2"] == library.calls["cuCtxPopCurrent_v2"] == 3
    assert not library.calls["cuCtxSetCurrent"]
    assert mode_now(library) == GLOBAL


def test_the_bindings_have_the_batched_copy(library: SimulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look_up(*arguments: Any) -> tuple[int, int, int]:
        asked.append(arguments)
        return 0, library.batch_address, 0

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", SimpleNamespace(cuGetProcAddress=look_up))
    assert Driver(0, library).batches
    assert asked == [(b"cuMemcpyBatchAsync", 12080, 0)]
    assert not library.calls["cuGetProcAddress_v2"]


@pytest.mark.parametrize(
    "bindings",
    [None, SimpleNamespace(), SimpleNamespace(cuGetProcAddress=raising(RuntimeError("Failed to dlopen libcuda.so.1")))],
    ids=["none", "odd", "no driver found"],
)
def test_the_batched_copy_is_found_without_bindings(
    bindings: Any, library: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    assert Driver(0, library).batches
    assert library.calls["cuGetProcAddress_v2"] == 1


def test_older_drivers_copy_one_by_one() -> None:
    refusing = SimpleNamespace(cuGetProcAddress=lambda *_: (500, 0, 1))
    for library in (SimulatedDriver(lacks={"cuGetProcAddress_v2"}), SimulatedDriver(fail={"cuGetProcAddress_v2"})):
        driver = Driver(0, library)
        assert not driver.batches
        memcpy_of(driver)(Bytes(2).moves, RecordingQueue())
        assert library.calls["cuMemcpyAsync"] == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda.bindings.driver", refusing)
        assert not Driver(0, SimulatedDriver()).batches


class Bytes:
    """Returns random moves between runs of two buffers."""

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
def test_large_batches_are_cut(library: SimulatedDriver, count: int, batches: list[int]) -> None:
    its = Bytes(count)
    Batched(Driver(0, library), at_once=3)(its.moves, LateQueue(0x1234))
    assert library.batches == [(size, 0x1234) for size in batches]
    assert np.array_equal(its.target, its.wanted)


def test_moves_without_batches_are_made_one_by_one(library: SimulatedDriver) -> None:
    its = Bytes(5)
    OneByOne(Driver(0, library))(its.moves, LateQueue(1))
    assert library.calls["cuMemcpyAsync"] == 5
    assert np.array_equal(its.target, its.wanted)


class RecordingQueue(LateQueue):
    """A queue whose marks come when they are asked for the second time. `unfinished` has the marks before that."""

    def __init__(self) -> None:
        super().__init__(1)
        self.unfinished: list[AskedTwice] = []

    def mark(self) -> AskedTwice:  # type: ignore[override]
        self.unfinished.append(AskedTwice(self))
        return self.unfinished[-1]


class AskedTwice:
    def __init__(self, queue: RecordingQueue) -> None:
        self._queue, self._asked = queue, 0

    def query(self) -> bool:
        self._asked += 1
        if self._asked == 2:
            self._queue.unfinished.remove(self)
        return self._asked >= 2


@pytest.mark.parametrize("ahead", [3, 6, 7, 100])
def test_few_moves_wait_for_the_gpu(ahead: int) -> None:
    """However many there are, in one call or in several: a full queue would hold the engine's launches up."""
    queue, its, waiting = RecordingQueue(), Bytes(20), []
    sizes: list[int] = []

    def memcpy(moves: Moves, _: object) -> None:
        sizes.append(len(moves.nbytes))
        waiting.append(3 * len(queue.unfinished) + len(moves.nbytes))

    paced = Paced(memcpy, at_once=3, ahead=ahead)
    for _ in range(2):
        paced(its.moves, queue)
    assert sizes == 2 * [3, 3, 3, 3, 3, 3, 2]
    assert max(waiting) <= ahead
    assert max(waiting) > ahead - 3 or ahead == 100


@pytest.mark.parametrize("name", ["cuMemcpyBatchAsync", "cuMemcpyAsync"])
def test_moves_that_fail(library: SimulatedDriver, name: str) -> None:
    driver = Driver(0, library)
    library.fail.add(name)
    memcpy = Batched(driver) if "Batch" in name else OneByOne(driver)
    with pytest.raises(DeviceError, match=f"{name}: CUDA_ERROR_OF_TESTS"):
        memcpy(Bytes(2).moves, LateQueue(0))
