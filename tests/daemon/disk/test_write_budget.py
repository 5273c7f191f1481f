"""Tests that the bytes of a day are spent on whole prefixes and never exceed the budget."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import ReserveOutcome, TierFlag
from pagetier.shm.page_rows import PAGE_ANSWERS, PAGE_REQUESTS, PageAnswer, PageRequest
from virtual_time_loop import OwnTimeLoop

pytestmark = pytest.mark.usefixtures("virtual_time")

DAY_S = 86_400


def note(
    budget: Budget, outcomes: list[ReserveOutcome], reservations: list[int], on_disk: int = 0, size: int = 10
) -> None:
    """Notes a prompt of which the first `on_disk` pages are on disk, too."""
    pages = len(outcomes)
    tiers = bytes([TierFlag.BOTH] * on_disk + [TierFlag.MEMORY] * (pages - on_disk))
    asked = PAGE_REQUESTS.pack(PageRequest(bytes(32), size) for _ in outcomes)
    answers = PAGE_ANSWERS.pack(PageAnswer(outcome, 0, 0) for outcome in outcomes)
    budget.note(asked, answers, struct.pack(f"<{pages}I", *reservations), tiers)


def left(budget: Budget) -> int:
    report = budget.report()
    assert report is not None
    return report.left


def test_without_a_limit_everything_is_allowed() -> None:
    budget = Budget(0)
    assert budget.charge(17, 1 << 60)
    assert budget.report() is None


def test_the_first_page_of_a_run_pays_for_all_of_it() -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.GRANTED] * 4, [1] * 4)
    assert left(budget) == 100
    assert all(budget.charge(1, 10) for _ in range(4))
    assert left(budget) == 60


def test_a_run_pays_for_those_before_it() -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.GRANTED] * 3, [1] * 3)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [1, 1, 2])
    assert budget.charge(2, 10)
    assert left(budget) == 100 - 30 - 10
    assert budget.charge(1, 10)
    assert left(budget) == 60


def test_a_run_beyond_the_budget_is_rejected_with_all_that_follow_and_counted() -> None:
    budget = Budget(50)
    note(budget, [ReserveOutcome.GRANTED] * 6, [1] * 6)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [1, 2])
    assert not budget.charge(1, 10)
    assert not budget.charge(2, 10)
    note(budget, [ReserveOutcome.GRANTED] * 5, [3] * 5)
    assert budget.charge(3, 10)
    report = budget.report()
    assert report is not None
    assert (report.left, report.skipped_bytes, report.per_day) == (0, 20, 50)


def test_the_budget_fills_evenly_and_never_exceeds_a_day(virtual_time: OwnTimeLoop) -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.GRANTED] * 10, [1] * 10)
    assert budget.charge(1, 10)
    assert left(budget) == 0
    virtual_time.passes(DAY_S / 4)
    assert left(budget) == 25
    virtual_time.passes(30 * DAY_S)
    assert left(budget) == 100


def test_unknown_runs_are_not_written() -> None:
    budget = Budget(100)
    assert not budget.charge(99, 10)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [99, 1])
    assert not budget.charge(1, 10)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [0, 2])
    assert not budget.charge(2, 10), "its prefix was stored before this daemon started"


def test_what_follows_a_page_on_disk_is_written() -> None:
    """A page that was read back, or that this daemon found on disk, has no known reservation."""
    budget = Budget(100)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [0, 0, 1], on_disk=2)
    assert budget.charge(1, 10)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [0, 0, 2], on_disk=1)
    assert not budget.charge(2, 10), "the page before it is in memory only"


def test_a_page_on_disk_is_not_paid_again() -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.GRANTED], [1])
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.GRANTED], [1, 2], on_disk=1)
    assert budget.charge(2, 10)
    assert left(budget) == 90


def test_a_reservation_without_a_grant_changes_nothing() -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.PRESENT, ReserveOutcome.REFUSED_FULL], [0, 0])
    note(budget, [], [])
    assert left(budget) == 100


# Each step stores a prompt again up to some pages, writes the pages of one of the reservations, or advances the time.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 3), st.integers(1, 12)),
        st.tuples(st.just("write"), st.integers(1, 20), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, DAY_S), st.just(0)),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the time only passes
@given(steps=STEPS, per_day=st.integers(1, 200))
def test_allowed_pages_are_prefixes_and_within_the_budget(
    virtual_time: OwnTimeLoop, steps: list[tuple[str, int, int]], per_day: int
) -> None:
    budget = Budget(per_day)
    began = virtual_time.time()
    prompts: dict[int, list[int]] = {prompt: [] for prompt in range(4)}  # the reservation of each page
    made = 0
    for what, which, pages in steps:
        if what == "store":
            known = prompts[which][:pages]
            new = pages - len(known)
            if new > 0:
                made += 1
                note(
                    budget, [ReserveOutcome.PRESENT] * len(known) + [ReserveOutcome.GRANTED] * new, known + [made] * new
                )
                prompts[which] += [made] * new
        elif what == "write":
            budget.charge(which, 10)
        else:
            virtual_time.passes(which)
        before = left(budget)
        assert 0 <= before <= per_day
    written = {reservation for reservation in range(1, made + 1) if _was_allowed(budget, reservation)}
    for prompt in prompts.values():
        flags = [reservation in written for reservation in prompt]
        assert flags == sorted(flags, reverse=True), "a prefix has a hole"
    cost = 10 * sum(reservation in written for prompt in prompts.values() for reservation in prompt)
    assert cost <= per_day * (1 + (virtual_time.time() - began) / DAY_S) + 1


def _was_allowed(budget: Budget, reservation: int) -> bool:
    """Returns whether a reservation was allowed, without deciding anything."""
    return budget._granted[reservation].verdict.name == "ALLOWED"


def test_bytes_beyond_the_allowed_pages_are_charged_to_the_following_hours(virtual_time: OwnTimeLoop) -> None:
    budget = Budget(100)
    note(budget, [ReserveOutcome.GRANTED] * 4, [1] * 4)
    assert budget.charge(1, 10)
    budget.spend(90)
    assert left(budget) == 0
    note(budget, [ReserveOutcome.GRANTED], [2])
    assert not budget.charge(2, 10)
    virtual_time.passes(DAY_S / 2)
    note(budget, [ReserveOutcome.GRANTED], [3])
    assert left(budget) == 20
    assert budget.charge(3, 10)


def test_a_page_that_failed_is_paid_for_when_it_is_written_again() -> None:
    budget = Budget(1000)
    note(budget, [ReserveOutcome.GRANTED], [1], size=600)
    assert budget.charge(1, 600)
    budget.spend(0 - 600)  # nothing of the charged bytes was written
    assert left(budget) == 1000
    assert budget.charge(1, 600)
    budget.spend(600 - 600)
    assert left(budget) == 400


def test_a_retry_before_the_other_pages_of_its_reservation_pays_once() -> None:
    budget = Budget(1000)
    note(budget, [ReserveOutcome.GRANTED] * 2, [1] * 2, size=300)
    assert budget.charge(1, 300)
    budget.spend(0 - 300)
    assert budget.charge(1, 300) and budget.charge(1, 300)
    budget.spend(600 - 600)
    assert left(budget) == 400


def test_a_retry_keeps_the_prefix_whole_and_the_following_hours_pay_for_it(virtual_time: OwnTimeLoop) -> None:
    budget = Budget(1000)
    note(budget, [ReserveOutcome.GRANTED], [1], size=600)
    note(budget, [ReserveOutcome.GRANTED], [2], size=1000)
    assert budget.charge(1, 600)
    budget.spend(0 - 600)
    assert budget.charge(2, 1000) and budget.charge(1, 600)
    virtual_time.passes(DAY_S * 0.6)
    assert left(budget) == 0
    virtual_time.passes(DAY_S * 0.1)
    assert left(budget) == 100


def test_bytes_that_are_written_after_a_pause_are_charged(virtual_time: OwnTimeLoop) -> None:
    budget = Budget(100)
    virtual_time.passes(DAY_S)
    budget.spend(90)
    assert left(budget) == 10
