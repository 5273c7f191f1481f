"""Pinning with drivers whose calls end in any order, with or without error, and a close() at any time."""

from __future__ import annotations

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_pinning_driver import BASE, SMALL, WAIT_S, GatedDriver, eventually, pinning, ready_chunks


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
        """Asserts that all threads are in a call as long as there was no error."""
        if not (self.failed or self.closed):
            eventually(lambda: len(self.driver.waiting) == min(self.threads, self.count - self.ended))


TestPinning = PinningMachine.TestCase
TestPinning.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
