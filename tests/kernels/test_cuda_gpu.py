"""The CUDA device on a real GPU: every byte of cache and arena, the order of streams, graph capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from copy_case_memory import Placed
from copy_cases import Case, Stored, case_of, cases
from eventually import pace
from gpu_copies import Gate, begun, device_of, registered, stream_of
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.cuda import CudaDevice
from pagetier.kernels.layout.slot_map import slot_map

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
BOTH = pytest.mark.parametrize("direction", Direction)
PATHS = pytest.mark.parametrize("path", ["auto", "kernel", "staged", "dma"])
PINNED = pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
ROWS = ("layer", "kind", "block", "token", "head")


class OnGpu:
    """A case whose cache is on the device and whose arena is the host's."""

    def __init__(self, case: Case) -> None:
        self.host = Placed(case, "cuda:0")
        self.cache = torch.from_numpy(self.host.cache).to("cuda:0")
        torch.cuda.synchronize()

    def copy(self, direction: Direction) -> Copy:
        its = self.host.copy(direction)
        planes = its.transfer.planes.copy()
        planes["base"] = planes["base"] + self.cache.data_ptr() - self.host.cache.ctypes.data
        return msgspec.structs.replace(its, transfer=msgspec.structs.replace(its.transfer, planes=planes))

    def wanted(self, direction: Direction) -> Any:
        return self.host.after(self.host.copy(direction))

    def expect(self, wanted: Any) -> None:
        np.testing.assert_array_equal(self.cache.cpu().numpy(), wanted[0])
        np.testing.assert_array_equal(self.host.arena, wanted[1])

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Pins the arena during the copy."""
        with registered(self.host.arena.ctypes.data, self.host.arena.nbytes):
            yield


def warmed(path: str, its: OnGpu, direction: Direction) -> CudaDevice:
    """Returns a device that has compiled, loaded and allocated everything for a test: some of it waits for the GPU."""
    device = device_of(path)
    assert begun(device, [its.copy(direction)] * 2).wait(60)
    its.cache.bitwise_xor_(0).clone()
    torch.cuda.synchronize()
    return device


def large_case(pages: int = 6) -> Case:
    """Returns a copy with runs of 256 bytes, 12,288 of them per page."""
    return _case(8, pages)


def small_case() -> Case:
    """Returns a copy with 6,144 runs of 256 bytes, which all fit into the queue of a stream."""
    return _case(2, 2)


def _case(layers: int, pages: int) -> Case:
    stored = Stored(ROWS, layers=layers, kinds=2, heads=4, width=256)
    slots = slot_map(np.random.default_rng(1).permutation(12 * pages), pages, 192, 16)
    return case_of([stored], slots, np.random.default_rng(2))


@BOTH
@PATHS
@PINNED
@given(case=cases())
@settings(deadline=None, max_examples=30)
def test_each_byte_is_copied_and_no_other_changes(direction: Direction, path: str, pinned: bool, case: Case) -> None:
    """Bytes outside of the copy were random and must be unchanged."""
    its = OnGpu(case)
    wanted = its.wanted(direction)
    if pinned:
        with its.registered():
            assert begun(device_of(path), [its.copy(direction)]).wait(10)
    else:
        assert begun(device_of(path, False), [its.copy(direction)]).wait(10)
    its.expect(wanted)


@BOTH
@PATHS
def test_many_runs_fit_through_a_small_ring(direction: Direction, path: str) -> None:
    """Batches that are split, slots that are reused many times, pages larger than a slot; four copies in succession."""
    its = OnGpu(large_case())
    wanted = its.wanted(direction)
    with its.registered():
        assert begun(device_of(path, staging=1 << 20), [its.copy(direction)] * 4).wait(30)
    its.expect(wanted)


def test_copies_may_be_enqueued_layer_by_layer() -> None:
    its = OnGpu(large_case())
    wanted, copy = its.wanted(Direction.LOAD), its.copy(Direction.LOAD)
    layers = [msgspec.structs.replace(copy, planes=range(at, at + 2)) for at in range(0, 16, 2)]
    with its.registered():
        assert begun(device_of(), layers).wait(10)
    its.expect(wanted)


@PATHS
def test_a_store_comes_after_what_the_engine_computes(path: str) -> None:
    its, engine, event, gate = OnGpu(small_case()), torch.cuda.Stream(), torch.cuda.Event(), Gate()
    with its.registered():
        device = warmed(path, its, Direction.STORE)
        its.host.arena ^= 0xA5
        its.host.cache ^= 0x5A
        wanted = its.wanted(Direction.STORE)
        with torch.cuda.stream(engine):
            gate.hold(engine)
            its.cache.bitwise_xor_(0x5A)
            event.record(engine)
        stored = begun(device, [its.copy(Direction.STORE)], after=event)
        assert not stored.wait(0.001)
        gate.open()
        assert stored.wait(10)
    its.expect(wanted)


@PATHS
def test_the_engine_continues_after_a_load(path: str) -> None:
    """The host does not wait, although the load is late."""
    its, other, engine, late = OnGpu(small_case()), torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    gate = Gate()
    with its.registered():
        device = warmed(path, its, Direction.LOAD)
        its.host.arena ^= 0xA5
        wanted = its.wanted(Direction.LOAD)
        gate.hold(other)
        late.record(other)
        loaded = begun(device, [its.copy(Direction.LOAD)], after=late)
        loaded.make_stream_wait(engine)
        with torch.cuda.stream(engine):
            seen = its.cache.clone()
        assert not loaded.done()
        gate.open()
        engine.synchronize()
        assert loaded.done()
    np.testing.assert_array_equal(seen.cpu().numpy(), wanted[0])


@BOTH
@PATHS
def test_a_late_event_does_not_hold_up_the_engine(direction: Direction, path: str) -> None:
    """The engine launches its kernels while 73,728 runs wait for an event that comes after them."""
    its, engine, late, gate = OnGpu(large_case()), torch.cuda.Stream(), torch.cuda.Event(), Gate()
    numbers = torch.zeros(1000, device="cuda:0")
    wanted, events = its.wanted(direction), []
    with its.registered():
        device = warmed(path, its, direction)
        numbers += 1  # loads its kernel, for which CUDA waits for the GPU
        gate.hold(engine)
        late.record(engine)
        copying = Thread(target=lambda: events.append(begun(device, [its.copy(direction)], after=late)))
        launching = Thread(target=launch_often, args=(numbers,))
        for thread in (copying, launching):
            thread.start()
        launching.join(20)
        held_up = launching.is_alive()
        gate.open()
        for thread in (copying, launching):
            thread.join()
        assert events[0].wait(60)
    assert not held_up
    assert numbers.eq(201).all()
    its.expect(wanted)


def launch_often(numbers: Any) -> None:
    """Launches 200 small kernels, with pauses in which another thread enqueues more."""
    for _ in range(200):
        numbers += 1
        pace(0.001)


def test_streams_are_not_shared_with_torch() -> None:
    """Torch returns the same streams again after 32."""
    device = device_of()
    ours = {stream_of(device, direction)._queue.handle for direction in Direction}
    assert len(ours) == 2
    assert not ours & {torch.cuda.Stream().cuda_stream for _ in range(40)}


def test_the_address_of_registered_memory_is_the_hosts() -> None:
    """The kernels depend on it."""
    assert device_of().driver.same_addresses


class Copying:
    """Repeats one copy in a thread and a stream of its own. `counts` has the copies that ended."""

    def __init__(self, path: Any, copy: Copy) -> None:
        self.counts = 0
        self.failed: BaseException | None = None
        self._device, self._copy = CudaDevice(0, CopySettings(path=path, staging=1 << 20), lambda _: True), copy
        self._stop, self._thread = Event(), Thread(target=self._work)

    def _work(self) -> None:
        try:
            stream = self._device.stream(self._copy.direction)
            while not self._stop.is_set():
                stream.enqueue(self._copy)
                assert stream.record().wait(60)
                self.counts += 1
        except BaseException as error:
            self.failed = error
            raise

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


@BOTH
@PATHS
def test_an_engines_graph_is_captured_beside_copies(direction: Direction, path: Any) -> None:
    """In global mode, torch's default. The copies allocate memory and query events; the engine queries one, too."""
    its, numbers, graph = OnGpu(large_case()), torch.zeros(1000, device="cuda:0"), torch.cuda.CUDAGraph()
    wanted = its.wanted(direction)
    with its.registered():
        earlier = begun(device_of(path), [its.copy(direction)])
        assert earlier.wait(60)
        copying = Copying(path, its.copy(direction))
        with torch.cuda.graph(graph), copying.running():
            for _ in range(10):
                numbers += 1
                assert earlier.done()
                pace(0.05)
    assert copying.failed is None
    assert copying.counts
    graph.replay()
    torch.cuda.synchronize()
    assert numbers.eq(10).all()
    its.expect(wanted)
