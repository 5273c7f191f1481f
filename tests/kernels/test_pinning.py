"""Pinning in the background: what is ready when, what a failure leaves, and that close() leaves nothing behind."""

from __future__ import annotations

import logging
import mmap
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagetier.kernels.device import DeviceError
from pagetier.kernels.frames import Arena, frames_of
from pagetier.kernels.pinning import CHUNK, LARGEST_CHUNK, Pinning
from pagetier.kernels.registrar import cuda_registrar
from pinned import WAIT_S, GatedDriver, PinningDriver, eventually

KIB, MIB = 1 << 10, 1 << 20
SMALL = 4 * KIB
BASE = 1 << 30


def pinning(driver: PinningDriver, nbytes: int, chunk: int = SMALL, threads: int = 4) -> Pinning:
    return Pinning(BASE, nbytes, driver.register, driver.unregister, chunk, threads)


def ready_chunks(pinned: Pinning, count: int) -> list[bool]:
    return [pinned.ready(at * SMALL, SMALL) for at in range(count)]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, logger="pagetier.kernels.pinning")
    yield caplog


# --- all goes well --------------------------------------------------------------------------------------------


def test_all_is_pinned_in_chunks_and_unpinned_again() -> None:
    driver = PinningDriver()
    with pinning(driver, 5 * SMALL + 100) as pinned:
        assert pinned.wait(WAIT_S)
        assert driver.registered == {BASE + at * SMALL: SMALL for at in range(5)} | {BASE + 5 * SMALL: 100}
        assert pinned.progress == 1.0
        assert pinned.state.startswith("pinned ")
        assert pinned.ready(0, pinned.nbytes)
    assert not driver.registered
    assert not driver.wrong
    assert len(driver.began) == 6
    assert not pinned.ready(0, 1)
    assert pinned.state == "closed"


def test_several_at_once_but_no_more_than_wanted() -> None:
    driver = PinningDriver(seconds=0.005)
    with pinning(driver, 12 * SMALL, threads=3) as pinned:
        assert pinned.wait(WAIT_S)
    assert driver.most_at_once == 3
    assert not driver.wrong


def test_an_arena_of_nothing_is_ready_at_once() -> None:
    driver = PinningDriver()
    with pinning(driver, 0) as pinned:
        assert pinned.wait(0)
        assert pinned.progress == 1.0
        assert pinned.ready(0, 0)
    assert not driver.began


def test_chunks_are_a_power_of_two_and_no_larger_than_a_driver_takes() -> None:
    driver = PinningDriver()
    assert CHUNK <= LARGEST_CHUNK == 64 << 30
    for chunk in (0, 2 * KIB, 12 * KIB, LARGEST_CHUNK * 2):
        with pytest.raises(ValueError, match=f"chunks of {chunk} bytes"):
            pinning(driver, SMALL, chunk)
    with pytest.raises(ValueError, match="0 threads"):
        pinning(driver, SMALL, threads=0)
    with pytest.raises(ValueError, match="-1 bytes"):
        pinning(driver, -1)
    with pytest.raises(ValueError, match="share a page"):
        Pinning(BASE + 16, SMALL, driver.register, driver.unregister)
    assert not driver.began


# --- what is ready --------------------------------------------------------------------------------------------


def test_what_is_ready_while_the_rest_is_not() -> None:
    driver = GatedDriver()
    pinned = pinning(driver, 4 * SMALL)
    eventually(lambda: len(driver.waiting) == 4)
    assert not pinned.wait(0)
    assert pinned.state.startswith("pinning: 0 GiB of ")
    driver.let(BASE + 1 * SMALL)
    driver.let(BASE + 2 * SMALL)
    eventually(lambda: pinned.progress == 0.5)
    assert ready_chunks(pinned, 4) == [False, True, True, False]
    assert pinned.ready(SMALL, 2 * SMALL)
    assert pinned.ready(SMALL + 1, 1)
    assert not pinned.ready(SMALL - 1, 2)
    assert not pinned.ready(2 * SMALL, SMALL + 1)
    assert pinned.ready(0, 0)
    for offset, nbytes in ((-1, 1), (0, -1), (0, 4 * SMALL + 1)):
        with pytest.raises(ValueError, match="bytes"):
            pinned.ready(offset, nbytes)
    driver.let(BASE)
    driver.let(BASE + 3 * SMALL)
    assert pinned.wait(WAIT_S)
    pinned.close()


@given(
    pinned_chunks=st.sets(st.integers(0, 5)),
    frame_chunks=st.sampled_from([0.25, 0.5, 1, 2]),
    wanted=st.lists(st.integers(0, 23), max_size=6),
)
def test_frames_are_ready_where_their_bytes_are(
    pinned_chunks: set[int], frame_chunks: float, wanted: list[int]
) -> None:
    chunk, tail = 4 * SMALL, SMALL
    nbytes, frame = 5 * chunk + tail, int(chunk * frame_chunks)
    driver = GatedDriver()
    pinned = pinning(driver, nbytes, chunk, threads=6)
    for at in range(6):
        if at in pinned_chunks:
            driver.let(BASE + at * chunk)
    here = sum(tail if at == 5 else chunk for at in pinned_chunks)
    eventually(lambda: pinned.progress == here / nbytes)
    count = nbytes // frame
    table = np.array([frame_at % count for frame_at in wanted]).reshape(-1, 1 + (len(wanted) % 2 == 0))
    frames = frames_of(Arena(BASE, nbytes, frame), table.astype(np.int64))
    expected = all(pinned.ready(int(at) * frame, frame) for at in table.flat)
    byte_by_page = all(
        (at * frame + page) // chunk in pinned_chunks for at in table.flat for page in range(0, frame, SMALL)
    )
    assert pinned.ready_frames(frames) == expected == byte_by_page
    for at in range(6):
        driver.let(BASE + at * chunk)
    pinned.close()
    assert not driver.registered


# --- failures -------------------------------------------------------------------------------------------------


def test_a_failure_is_one_line_that_says_what_to_raise(logged: pytest.LogCaptureFixture) -> None:
    driver = PinningDriver(seconds=0.002, fails=(3, 4, 5))
    with pinning(driver, 100 * SMALL) as pinned:
        assert pinned.wait(WAIT_S)
        (line,) = (record.getMessage() for record in logged.records)
        assert "Cannot allocate memory" in line
        assert "RLIMIT_MEMLOCK" in line
        assert "Cannot allocate memory" in pinned.state
        assert 3 <= sum(ready_chunks(pinned, 100)) == len(driver.registered) <= 7
        assert 0 < pinned.progress < 0.1
    assert len(driver.began) <= 8  # the four that were under way, and what came before them
    assert not driver.registered
    assert not driver.wrong


@pytest.mark.parametrize(
    ("limit", "words"),
    [(8 << 20, "RLIMIT_MEMLOCK is 0.00781 GiB: raise it"), (resource.RLIM_INFINITY, "it is unlimited")],
)
def test_the_limit_is_named_as_it_is(
    limit: int, words: str, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    with pinning(PinningDriver(fails=(0,)), SMALL) as pinned:
        assert pinned.wait(WAIT_S)
    assert words in logged.text


def test_what_can_not_be_unpinned_does_not_keep_the_rest(logged: pytest.LogCaptureFixture) -> None:
    driver = PinningDriver()
    pinned = pinning(driver, 3 * SMALL, threads=1)

    def refuse(address: int) -> None:
        driver.unregister(address)
        if address == BASE + SMALL:
            raise RuntimeError("driver shutting down")

    pinned._unregister = refuse
    assert pinned.wait(WAIT_S)
    pinned.close()
    assert not driver.registered
    assert "driver shutting down" in logged.text


# --- the end --------------------------------------------------------------------------------------------------


def test_close_waits_for_what_is_under_way_and_begins_nothing_more() -> None:
    driver = GatedDriver()
    pinned = pinning(driver, 9 * SMALL, threads=2)
    eventually(lambda: len(driver.waiting) == 2)
    driver.let(BASE)
    eventually(lambda: pinned.ready(0, SMALL) and len(driver.waiting) == 2)
    closers = [threading.Thread(target=pinned.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    eventually(lambda: not pinned.ready(0, SMALL))
    assert any(closer.is_alive() for closer in closers)
    driver.let(BASE + 1 * SMALL)
    driver.let(BASE + 2 * SMALL, "too late")
    for closer in closers:
        closer.join(WAIT_S)
    assert sorted(driver.began) == [BASE, BASE + SMALL, BASE + 2 * SMALL]
    assert not driver.registered
    assert not driver.wrong
    assert pinned.state == "closed"


def test_a_failure_after_close_is_no_news(logged: pytest.LogCaptureFixture) -> None:
    driver = GatedDriver()
    pinned = pinning(driver, SMALL)
    eventually(lambda: len(driver.waiting) == 1)
    closer = threading.Thread(target=pinned.close)
    closer.start()
    eventually(lambda: pinned.state == "closed")
    driver.let(BASE, "too late")
    closer.join(WAIT_S)
    assert not logged.records


# --- CUDA's functions -----------------------------------------------------------------------------------------


class Cudart:
    """As torch shows CUDA's runtime, on a machine with two GPUs."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.devices: list[int] = []
        self.code = 0
        self.is_relaxed = False

    def cudaHostRegister(self, *arguments: int) -> int:  # noqa: N802
        assert self.is_relaxed
        self.calls.append(("register", self.devices[-1], *arguments))
        return self.code

    def cudaHostUnregister(self, *arguments: int) -> int:  # noqa: N802
        assert self.is_relaxed
        self.calls.append(("unregister", self.devices[-1], *arguments))
        return self.code

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        return f"words for {code}"

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """The driver's, which the engine's capture of a graph needs."""
        self.is_relaxed = True
        yield
        self.is_relaxed = False

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.devices.append(index)
        yield
        self.devices.pop()


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    fake = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", fake.device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr("pagetier.kernels.registrar.Driver", lambda index: fake)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    return fake


def test_cuda_pins_on_the_device_that_was_meant(cudart: Cudart) -> None:
    register, unregister = cuda_registrar("cuda:0")
    register(BASE, SMALL)
    unregister(BASE)
    cuda_registrar().register(BASE, SMALL)
    assert cudart.calls == [("register", 0, BASE, SMALL, 3), ("unregister", 0, BASE), ("register", 1, BASE, SMALL, 3)]
    assert not cudart.devices


def test_cudas_errors_are_exceptions(cudart: Cudart, logged: pytest.LogCaptureFixture) -> None:
    cudart.code = 2
    register, unregister = cuda_registrar()
    with pytest.raises(DeviceError, match=r"pinning 4096 bytes: words for 2 \(cudaHostRegister\)"):
        register(BASE, SMALL)
    with pytest.raises(DeviceError, match=r"unpinning: words for 2 \(cudaHostUnregister\)"):
        unregister(BASE)
    with Pinning(BASE, SMALL, register, unregister) as pinned:
        assert pinned.wait(WAIT_S)
        assert "words for 2" in pinned.state
    assert "words for 2" in logged.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_registrar() -> None:
    for device in ("cuda", "cuda:3", "nonsense"):
        with pytest.raises(DeviceError, match=f"^{device}: "):
            cuda_registrar(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_knows_the_memory_as_pinned_until_it_is_closed() -> None:
    with mmap.mmap(-1, 9 * MIB) as memory:
        host = torch.frombuffer(memory, dtype=torch.uint8)
        with Pinning(host.data_ptr(), len(memory), *cuda_registrar("cuda:0"), chunk=4 * MIB) as pinned:
            assert pinned.wait(WAIT_S)
            assert pinned.progress == 1.0
            assert all(host[at * MIB :].is_pinned() for at in range(9))
        assert not host.is_pinned()
        del host


# --- any order ------------------------------------------------------------------------------------------------


class PinningMachine(RuleBasedStateMachine):
    """Calls end in any order, well or not, and close() comes at any moment."""

    @initialize(count=st.integers(1, 7), threads=st.integers(1, 4))
    def begin(self, count: int, threads: int) -> None:
        self.count, self.threads = count, threads
        self.driver = GatedDriver()
        self.pinned = pinning(self.driver, count * SMALL, threads=threads)
        self.closer = threading.Thread(target=self.pinned.close)
        self.well: set[int] = set()
        self.ended = 0
        self.failed = self.closed = False

    @rule(which=st.integers(0, 3), how=st.sampled_from(["", "", "no more"]))
    def end_a_call(self, which: int, how: str) -> None:
        self._wait_for_calls()
        if not self.driver.waiting:
            return
        address = sorted(self.driver.waiting)[which % len(self.driver.waiting)]
        self.driver.let(address, how)
        eventually(lambda: address not in self.driver.waiting)
        self.ended += 1
        self.failed |= bool(how)
        if not how:
            self.well.add((address - BASE) // SMALL)

    @rule()
    @precondition(lambda self: not self.closed)
    def close(self) -> None:
        self._wait_for_calls()
        self.closed = True
        self.closer.start()
        eventually(lambda: self.pinned.state.startswith(("closed", "unpinning")))

    @invariant()
    def what_ended_well_is_ready_until_close(self) -> None:
        expected = [at in self.well and not self.closed for at in range(self.count)]
        eventually(lambda: ready_chunks(self.pinned, self.count) == expected)
        if not self.closed:
            assert self.pinned.progress == len(self.well) / self.count
            eventually(lambda: ("no more" in self.pinned.state) == self.failed)

    def teardown(self) -> None:
        if not self.closed:
            self.close()
        began = list(self.driver.began)
        for address in list(self.driver.waiting):
            self.driver.let(address)
        self.closer.join(WAIT_S)
        assert not self.closer.is_alive()
        assert self.driver.began == began and len(set(began)) == len(began)
        assert not self.driver.registered
        assert not self.driver.wrong

    def _wait_for_calls(self) -> None:
        """As long as all is well all threads are in a call."""
        if not (self.failed or self.closed):
            eventually(lambda: len(self.driver.waiting) == min(self.threads, self.count - self.ended))


TestPinning = PinningMachine.TestCase
TestPinning.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
