"""Pinning in the background: when memory is ready, the state after a failure, and a complete close()."""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eventually import PATIENCE_S, eventually
from fake_pinning_driver import BASE, SMALL, GatedDriver, PinningDriver, pinning, ready_chunks
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.pinning.pinning import CHUNK, LARGEST_CHUNK, Pinning

KIB = 1 << 10


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, logger="pagetier.kernels.pinning.pinning")
    yield caplog


# --- without errors ---------------------------------------------------------------------------------------------


def test_all_is_pinned_in_chunks_and_unpinned_again() -> None:
    driver = PinningDriver()
    with pinning(driver, 5 * SMALL + 100) as pinned:
        assert pinned.wait(PATIENCE_S)
        assert driver.registered == {BASE + at * SMALL: SMALL for at in range(5)} | {BASE + 5 * SMALL: 100}
        assert pinned.progress == 1.0
        assert pinned.state.startswith("pinned ")
        assert pinned.ready(0, pinned.nbytes)
    assert not driver.registered
    assert not driver.wrong
    assert len(driver.began) == 6
    assert not pinned.ready(0, 1)
    assert pinned.state == "closed"


def test_chunks_are_pinned_by_at_most_the_given_threads() -> None:
    driver = GatedDriver()
    with pinning(driver, 12 * SMALL, threads=3) as pinned:
        for at in range(12):
            assert eventually(lambda: len(driver.waiting) == min(3, 12 - at))  # noqa: B023
            driver.let(BASE + at * SMALL)
        assert pinned.wait(PATIENCE_S)
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
        with pytest.raises(ValueError, match=f"chunk = {chunk} is not a power of two"):
            pinning(driver, SMALL, chunk)
    with pytest.raises(ValueError, match="0 threads"):
        pinning(driver, SMALL, threads=0)
    with pytest.raises(ValueError, match="-1 bytes"):
        pinning(driver, -1)
    with pytest.raises(ValueError, match="not aligned"):
        Pinning(BASE + 16, SMALL, driver.register, driver.unregister)
    assert not driver.began


# --- ready memory -----------------------------------------------------------------------------------------------


def test_pinned_chunks_are_ready_before_the_others() -> None:
    driver = GatedDriver()
    pinned = pinning(driver, 4 * SMALL)
    assert eventually(lambda: len(driver.waiting) == 4)
    assert not pinned.wait(0)
    assert pinned.state.startswith("pinning: 0 GiB of ")
    driver.let(BASE + 1 * SMALL)
    driver.let(BASE + 2 * SMALL)
    assert eventually(lambda: pinned.progress == 0.5)
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
    assert pinned.wait(PATIENCE_S)
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
    assert eventually(lambda: pinned.progress == here / nbytes)
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


def test_a_failure_is_one_log_line_with_the_limit_to_raise(logged: pytest.LogCaptureFixture) -> None:
    driver = GatedDriver()
    with pinning(driver, 100 * SMALL) as pinned:
        for at in range(3):
            driver.let(BASE + at * SMALL)
        assert eventually(lambda: len(driver.waiting) == 4 and len(driver.began) == 7)
        for at in (3, 4, 5):
            driver.let(BASE + at * SMALL, "Cannot allocate memory")
            assert eventually(lambda: "failed" in pinned.state)
        driver.let(BASE + 6 * SMALL)
        assert pinned.wait(PATIENCE_S)
        (line,) = (record.getMessage() for record in logged.records)
        assert "Cannot allocate memory" in line
        assert "RLIMIT_MEMLOCK" in line
        assert "Cannot allocate memory" in pinned.state
        assert sum(ready_chunks(pinned, 100)) == len(driver.registered) == 4
        assert pinned.progress == 0.04
    assert len(driver.began) == 7, "a call began after one had failed"
    assert not driver.registered
    assert not driver.wrong


@pytest.mark.parametrize(
    ("limit", "words"),
    [(8 << 20, "RLIMIT_MEMLOCK is 0.00781 GiB: raise it"), (resource.RLIM_INFINITY, "is unlimited")],
)
def test_the_limit_is_named_as_it_is(
    limit: int, words: str, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    with pinning(PinningDriver(fails=(0,)), SMALL) as pinned:
        assert pinned.wait(PATIENCE_S)
    assert words in logged.text


def test_a_chunk_that_cannot_be_unpinned_does_not_keep_the_others(logged: pytest.LogCaptureFixture) -> None:
    driver = PinningDriver()
    pinned = pinning(driver, 3 * SMALL, threads=1)

    def refuse(address: int) -> None:
        driver.unregister(address)
        if address == BASE + SMALL:
            raise RuntimeError("driver shutting down")

    pinned._unregister = refuse
    assert pinned.wait(PATIENCE_S)
    pinned.close()
    assert not driver.registered
    assert "driver shutting down" in logged.text


# --- the end --------------------------------------------------------------------------------------------------


def test_close_waits_for_running_calls_and_begins_no_other() -> None:
    driver = GatedDriver()
    pinned = pinning(driver, 9 * SMALL, threads=2)
    assert eventually(lambda: len(driver.waiting) == 2)
    driver.let(BASE)
    assert eventually(lambda: pinned.ready(0, SMALL) and len(driver.waiting) == 2)
    closers = [threading.Thread(target=pinned.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    assert eventually(lambda: not pinned.ready(0, SMALL))
    assert any(closer.is_alive() for closer in closers)
    driver.let(BASE + 1 * SMALL)
    driver.let(BASE + 2 * SMALL, "too late")
    for closer in closers:
        closer.join(PATIENCE_S)
    assert sorted(driver.began) == [BASE, BASE + SMALL, BASE + 2 * SMALL]
    assert not driver.registered
    assert not driver.wrong
    assert pinned.state == "closed"


def test_a_failure_after_close_is_not_logged(logged: pytest.LogCaptureFixture) -> None:
    driver = GatedDriver()
    pinned = pinning(driver, SMALL)
    assert eventually(lambda: len(driver.waiting) == 1)
    closer = threading.Thread(target=pinned.close)
    closer.start()
    assert eventually(lambda: pinned.state == "closed")
    driver.let(BASE, "too late")
    closer.join(PATIENCE_S)
    assert not logged.records


# --- any order -----------------------------------------------------------------------------------------------


class PinningMachine(RuleBasedStateMachine):
    """Calls end in any order, with or without error, and close() is called at any time."""

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
        assert eventually(lambda: address not in self.driver.waiting)
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
        assert eventually(lambda: self.pinned.state.startswith(("closed", "unpinning")))

    @invariant()
    def what_ended_well_is_ready_until_close(self) -> None:
        expected = [at in self.well and not self.closed for at in range(self.count)]
        assert eventually(lambda: ready_chunks(self.pinned, self.count) == expected)
        if not self.closed:
            assert self.pinned.progress == len(self.well) / self.count
            assert eventually(lambda: ("no more" in self.pinned.state) == self.failed)

    def teardown(self) -> None:
        if not self.closed:
            self.close()
        began = list(self.driver.began)
        for address in list(self.driver.waiting):
            self.driver.let(address)
        self.closer.join(PATIENCE_S)
        assert not self.closer.is_alive()
        assert self.driver.began == began and len(set(began)) == len(began)
        assert not self.driver.registered
        assert not self.driver.wrong

    def _wait_for_calls(self) -> None:
        """Asserts that all threads are in a call as long as there was no error."""
        if not (self.failed or self.closed):
            assert eventually(lambda: len(self.driver.waiting) == min(self.threads, self.count - self.ended))


TestPinning = PinningMachine.TestCase
TestPinning.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
