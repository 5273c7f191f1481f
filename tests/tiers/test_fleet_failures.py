"""Tests that a fleet's store that hangs, fails or is late costs a miss in time, and no byte of a frame."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import msgspec
import pytest

from eventually import PATIENCE_S, eventually
from faulty_store import DictStore, FaultyStore
from fleet_pages import OpenedFleet, names_of, read_from
from pagetier.shm.page_rows import PAGES_TO_FIND, PageToFind
from pagetier.tiers.base import SKIPPED, TOO_LARGE, Incoming, ReadOutcome, ReadResult, TierError
from pagetier.tiers.fleet import open_fleet
from pagetier.tiers.fleet.store_calls import LATE_READ_S, MOST_CALLS, StoreCalls
from pagetier.tiers.fleet.trial import TrialOptions, try_store
from pagetier.tiers.worker.fleet_worker import _WATCH_S, FleetWorker
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import FRAME, aligned, outgoing, outgoings
from virtual_clock import VirtualClock

TIMEOUT_S, HOUR_S = 1.0, 3600.0
OPTIONS = FleetOptions(url="python://faulty_store:FaultyStore", timeout_s=TIMEOUT_S, buffers=1 << 20)


class WatchedCalls(StoreCalls):
    """Calls whose threads are watched."""

    @property
    def busy(self) -> int:
        """The threads that make a call or pass on its result."""
        return self._threads - len(self._idle)


@pytest.fixture
def clock(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Returns the time of a fleet. It passes only while all calls of the store that have not returned hang.

    A thread that an earlier test left lets no time pass.
    """
    fleets: list[WatchedCalls] = []

    def watched(timeout_s: float) -> WatchedCalls:
        fleets.append(WatchedCalls(timeout_s))
        return fleets[-1]

    def all_hang() -> bool:
        before, hanging = busy(), FaultyStore.hanging
        return before == hanging == busy()  # no call has ended between two of these looks

    def busy() -> int:
        return sum(calls.busy for calls in fleets)

    is_of_test = virtual_clock.is_stuck
    virtual_clock.is_stuck = lambda: is_of_test() and all_hang()
    monkeypatch.setattr(open_fleet, "StoreCalls", watched)
    return virtual_clock


@pytest.fixture
def opened(clock: VirtualClock) -> Iterator[OpenedFleet]:
    DictStore.objects.clear()
    FaultyStore.before, FaultyStore.hangs, FaultyStore.released = [], set(), threading.Event()
    opened = OpenedFleet(OPTIONS)
    yield opened
    FaultyStore.before, FaultyStore.hangs = [], set()
    FaultyStore.released.set()
    assert eventually(lambda: opened.fleet.state().calls == 0)
    assert opened.fleet.state().lent_bytes == 0, "a bounce buffer leaked"


def fail(call: str, times: int = 1 << 30, after: Callable[[], object] = bool) -> None:
    """Makes a call of the store fail some times, each time after a function was called."""
    left = [times]

    def failing(name: str) -> None:
        if name == call and left[0]:
            left[0] -= 1
            after()
            raise ConnectionError("broken pipe\nof the store")

    FaultyStore.before.append(failing)


def calls_of(name: str) -> list[str]:
    """Returns the calls of this name that the store gets from now on."""
    calls: list[str] = []
    FaultyStore.before.append(lambda call: calls.append(call) if call == name else None)
    return calls


def test_a_hung_read_fails_in_time_and_keeps_its_buffer(opened: OpenedFleet, clock: VirtualClock) -> None:
    page = outgoing(1)
    opened.store_all(page)
    gets, FaultyStore.hangs, began = calls_of("get"), {"get"}, clock.now
    result, _ = read_from(opened.fleet, page)
    assert clock.now == began + TIMEOUT_S
    assert gets == ["get"], "a second call would take a second timeout"
    assert result.outcome is ReadOutcome.FAILED
    assert result.reason == "the store did not answer within 1 s"
    state = opened.fleet.state()
    assert (state.calls, state.late) == (1, 1)
    assert state.lent_bytes > page.size, "the buffer of a call that has not returned was given to others"
    FaultyStore.hangs = set()
    assert opened.outcome(page) is ReadOutcome.EXACT, "other calls go on"


@pytest.mark.usefixtures("opened")
def test_a_trial_gives_up_a_store_that_hangs_and_leaves_no_page(clock: VirtualClock) -> None:
    FaultyStore.hangs, began = {"get"}, clock.now
    with pytest.raises(TierError, match="just written cannot be read: the store did not answer within 1 s"):
        try_store(TrialOptions(fleet=OPTIONS, writes=True))
    assert clock.now == began + TIMEOUT_S
    assert not DictStore.objects, "the page is removed nevertheless"


def test_bytes_that_come_late_reach_no_frame(opened: OpenedFleet) -> None:
    page, other = outgoing(2), outgoing(3)
    opened.store_all(page, other)
    FaultyStore.hangs = {"get"}
    whole = aligned(3 * FRAME)
    frames = [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]
    assert opened.fleet.read(Incoming(page.key, page.size, frames, page.space.digest)).outcome is ReadOutcome.FAILED
    FaultyStore.hangs = set()
    whole[:] = b"\xaa" * len(whole)
    FaultyStore.released.set()  # the call now writes all of the object to its buffer
    assert opened.outcome(other) is ReadOutcome.EXACT
    assert eventually(lambda: opened.fleet.state().calls == 0)
    assert bytes(whole) == b"\xaa" * len(whole)


@pytest.mark.parametrize("call", ["exists", "put"])
def test_one_failure_is_retried(opened: OpenedFleet, call: str) -> None:
    fail(call, 1)
    opened.store_all(outgoing(4))
    assert opened.outcome(outgoing(4)) is ReadOutcome.EXACT


@pytest.mark.parametrize(("call", "times", "outcome"), [("get", 1, ReadOutcome.EXACT), ("get", 2, ReadOutcome.FAILED)])
def test_a_read_is_retried_once(opened: OpenedFleet, call: str, times: int, outcome: ReadOutcome) -> None:
    opened.store_all(outgoing(5))
    fail(call, times)
    result, _ = read_from(opened.fleet, outgoing(5))
    assert result.outcome is outcome
    assert result.reason == ("" if times == 1 else "the store failed: ConnectionError: broken pipe")


@pytest.mark.parametrize(("share", "calls"), [(0.4, 2), (0.6, 1)])
def test_a_read_that_fails_after_half_of_its_time_is_not_retried(
    opened: OpenedFleet, clock: VirtualClock, share: float, calls: int
) -> None:
    opened.store_all(outgoing(5))
    gets = calls_of("get")
    fail("get", after=lambda: clock.passes(share * TIMEOUT_S))
    assert opened.outcome(outgoing(5)) is ReadOutcome.FAILED
    assert gets == ["get"] * calls


def test_a_retry_has_no_more_time_than_the_first_call_had(opened: OpenedFleet, clock: VirtualClock) -> None:
    opened.store_all(outgoing(5))
    fail("get", 1, after=lambda: clock.passes(0.3 * TIMEOUT_S))
    FaultyStore.before.append(lambda call: FaultyStore.hangs.add("get"))
    began = clock.now
    assert opened.outcome(outgoing(5)) is ReadOutcome.FAILED
    assert clock.now == pytest.approx(began + TIMEOUT_S)


@pytest.mark.parametrize("call", ["exists", "put"])
def test_a_hung_write_fails_in_time(opened: OpenedFleet, clock: VirtualClock, call: str) -> None:
    FaultyStore.hangs, began = {call}, clock.now
    written = opened.fleet.write([], outgoings(range(40)))
    assert clock.now == began + TIMEOUT_S
    assert written.stored == (False,) * 40
    late = "the store did not answer within 1 s"
    assert set(written.reasons) == ({late, SKIPPED} if call == "put" else {late})


def test_a_failing_put_ends_the_batch(opened: OpenedFleet) -> None:
    puts: list[str] = []
    FaultyStore.before.append(puts.append)
    fail("put")
    written = opened.fleet.write([], outgoings(range(40), 500))
    assert not any(written.stored)
    assert puts.count("put") <= 8, "four puts at once, each tried twice"


def test_a_store_that_cannot_be_asked_locates_nothing(opened: OpenedFleet, clock: VirtualClock) -> None:
    fail("sizes")
    with pytest.raises(TierError, match=r"the store failed: ConnectionError: broken pipe$"):
        opened.fleet.locate(names_of([outgoing(6)]))
    FaultyStore.before.clear()
    asked, FaultyStore.hangs, began = calls_of("sizes"), {"sizes"}, clock.now
    with pytest.raises(TierError, match="did not answer"):
        opened.fleet.locate(names_of([outgoing(6)]))
    assert asked == ["sizes"] and clock.now == began + TIMEOUT_S


def located(opened: OpenedFleet) -> tuple[list[int], str]:
    """Returns the answer to a question for one page."""
    answers: queue.SimpleQueue[tuple[list[int], str]] = queue.SimpleQueue()
    page = outgoing(6)
    asked = PAGES_TO_FIND.pack([PageToFind(page.key, 0)])
    opened.fleet.start_locate(asked, [page.space], lambda sizes, why: answers.put((sizes.tolist(), why)))
    return answers.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("error", [BaseException("a panic"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_question_is_answered_whatever_the_store_raises(opened: OpenedFleet, error: BaseException) -> None:
    def failing(call: str) -> None:
        raise error

    FaultyStore.before.append(failing)
    sizes, why = located(opened)
    assert sizes == [0] and why


@pytest.mark.parametrize("call", ["exists", "put", "get"])
@pytest.mark.parametrize("error", [BaseException("a panic"), asyncio.CancelledError(), SystemExit(1)])
def test_whatever_a_store_raises_is_a_failure(opened: OpenedFleet, error: BaseException, call: str) -> None:
    def failing(name: str) -> None:
        if name == call:
            raise error

    opened.store_all(outgoing(14))
    FaultyStore.before.append(failing)
    written, (read, _) = opened.fleet.write([], [outgoing(15)]), read_from(opened.fleet, outgoing(14))
    assert written.stored == (call == "get",) and read.outcome is (ReadOutcome.EXACT, ReadOutcome.FAILED)[call == "get"]
    assert f"the store failed: {type(error).__name__}" in (written.reasons[0] or read.reason)


@pytest.mark.parametrize("answer", [[], [True, False], None, 7])
def test_a_wrong_answer_to_exists_is_a_failure(
    opened: OpenedFleet, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultyStore, "exists", lambda self, names: answer)
    written = opened.fleet.write([], [outgoing(16)])
    assert written.stored == (False,) and "the store" in written.reasons[0]


@pytest.mark.parametrize("lengths", [[], [1000, 1000], [-1], ["text"], 7])
def test_an_answer_that_fits_no_question_is_a_failure(
    opened: OpenedFleet, lengths: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultyStore, "sizes", lambda self, names: lengths)
    sizes, why = located(opened)
    assert sizes == [0] and (why or lengths == [-1])


def test_hung_calls_are_bounded(opened: OpenedFleet, clock: VirtualClock) -> None:
    FaultyStore.hangs = {"sizes"}
    before = threading.active_count()
    askers = [threading.Thread(target=ask_in_vain, args=(opened,)) for _ in range(MOST_CALLS + 10)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert threading.active_count() - before <= MOST_CALLS
    began = clock.now
    ask_in_vain(opened)
    assert clock.now == began, "it waits for no call"


def test_calls_in_turn_share_a_thread() -> None:
    calls = WatchedCalls(HOUR_S)
    threads = set()
    for _ in range(10):
        threads.add(calls.run(threading.get_ident))
        assert eventually(lambda: not calls.busy)
    assert len(threads) == 1


def test_a_call_whose_result_is_known_is_not_counted() -> None:
    """A thread may wait for a core after each of its steps."""
    calls, counts, over = StoreCalls(HOUR_S), queue.SimpleQueue[int](), threading.Event()

    def end_slowly(result: int) -> None:
        counts.put(calls.running)
        over.wait()

    for _ in range(MOST_CALLS + 1):
        calls.start(lambda: 1, then=end_slowly)
        assert counts.get() == 0
    over.set()


def test_a_call_whose_thread_cannot_be_started_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = StoreCalls(HOUR_S)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(MOST_CALLS + 1):
            with pytest.raises(TierError, match="no thread for a call of the store: can't start new thread"):
                calls.start(lambda: None)
    assert calls.running == 0
    assert calls.silent_s() == 0
    assert calls.run(lambda: 7) == 7


def ask_in_vain(opened: OpenedFleet) -> None:
    with pytest.raises(TierError):
        opened.fleet.locate(names_of([outgoing(7)]))


def test_the_time_without_any_return_is_known(opened: OpenedFleet, clock: VirtualClock) -> None:
    assert opened.fleet.silent_s() == 0
    FaultyStore.hangs = {"get"}
    opened.store_all(outgoing(8))
    assert eventually(lambda: opened.fleet.state().calls == 0)
    read_from(opened.fleet, outgoing(8))
    clock.passes(5.0)
    assert opened.fleet.silent_s() == TIMEOUT_S + 5.0
    assert opened.fleet.locate(names_of([outgoing(8)]))
    assert eventually(lambda: opened.fleet.silent_s() == 0), "another call has returned"
    assert opened.fleet.state().calls == 1


def test_a_worker_ends_when_its_store_has_been_silent_for_long(opened: OpenedFleet, clock: VirtualClock) -> None:
    opened.store_all(outgoing(8))
    assert eventually(lambda: opened.fleet.state().calls == 0)
    ends, FaultyStore.hangs, began = list[float](), {"get"}, clock.now
    channel = SimpleNamespace(send=bool, end=lambda: ends.append(clock.now))
    read_from(opened.fleet, outgoing(8))
    FleetWorker(opened.fleet, None, channel, TIMEOUT_S)._watch()  # type: ignore[arg-type]
    assert len(ends) == 1 and 10.0 < ends[0] - began <= 10.0 + _WATCH_S, "docs/fleet.md says 10 s"


def test_a_page_larger_than_all_buffers_is_refused_at_once_and_no_failure_of_the_store(
    opened: OpenedFleet, clock: VirtualClock
) -> None:
    page, began = outgoing(9, 2 << 20), clock.now
    assert opened.fleet.state().note == ""
    written = opened.fleet.write([], [page, outgoing(8, 4096)])
    result, _ = read_from(opened.fleet, page)
    assert clock.now == began
    assert written.reasons == (TOO_LARGE, "") and written.stored == (False, True)
    assert result == ReadResult(ReadOutcome.ABSENT)
    assert opened.fleet.state().note == "pages are larger than buffers in remote.url: raise it"


def test_a_read_without_a_buffer_fails_in_time(opened: OpenedFleet, clock: VirtualClock) -> None:
    page = outgoing(10, 600 << 10)
    opened.store_all(page)
    FaultyStore.hangs = {"get"}
    read_from(opened.fleet, page)
    FaultyStore.hangs = set()
    began = clock.now
    result, _ = read_from(opened.fleet, page)
    assert clock.now == began + TIMEOUT_S
    assert "all bounce buffers are in use" in result.reason
    FaultyStore.released.set()
    assert eventually(lambda: opened.outcome(page) is ReadOutcome.EXACT)


def test_a_damaged_object_that_cannot_be_removed_is_a_miss(opened: OpenedFleet) -> None:
    page = outgoing(11)
    opened.store_all(page)
    opened.replace(page, b"nothing of ours")
    fail("remove")
    assert opened.outcome(page) is ReadOutcome.DAMAGED


def test_writes_wait_while_a_read_is_late(opened: OpenedFleet, clock: VirtualClock) -> None:
    opened.store_all(outgoing(12))
    released, puts, gets, clock.is_stuck = FaultyStore.released, list[bool](), calls_of("get"), lambda: False
    FaultyStore.before.append(lambda call: puts.append(released.is_set()) if call == "put" else None)
    FaultyStore.hangs = {"get"}
    slow = OpenedFleet(msgspec.structs.replace(OPTIONS, timeout_s=HOUR_S))
    reader = threading.Thread(target=read_from, args=(slow.fleet, outgoing(12)))
    reader.start()
    assert eventually(lambda: bool(gets))
    slow.store_all(outgoing(13))
    assert puts == [False], "a read that has just begun delays no write"
    clock.passes(2 * LATE_READ_S)
    writer = threading.Thread(target=slow.store_all, args=(outgoing(14),))
    writer.start()
    assert eventually(lambda: slow.fleet._reads._changed.is_awaited), "the write waits for no read"
    released.set()
    writer.join()
    assert puts == [False, True]
    reader.join()
