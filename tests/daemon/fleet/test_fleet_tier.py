"""The fleet tier's worker is replaced when it is silent, opens for too long or loses a command, and not before."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from page_reservations import answer_rows
from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import MINUTE_S
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.fleet.breaker import FAILURES, Call
from pagetier.daemon.fleet.fleet_health import FleetHealth
from pagetier.daemon.fleet.fleet_tier import _PATIENCE, FleetTier
from pagetier.daemon.reads.lower_tier_reads import LowerTierReads
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm._core import KEY_BYTES, ReserveOutcome, page_requests
from pagetier.shm.page_rows import LOCATED_PAGES, LocatedPage
from pagetier.shm.protocol import FetchLocated, FetchOutcome, Reserve, Reserved, Space
from pagetier.shm.segments import Segments
from pagetier.tiers.base import UNTRIED, FleetState
from pagetier.tiers.worker_protocol import (
    Command,
    FleetOpened,
    FleetReport,
    GetState,
    HasRead,
    Read,
    Stored,
    Write,
    Wrote,
)

pytestmark = pytest.mark.usefixtures("virtual_time")
STATE = FleetState(url="file:///pages")
TURN_S = 0.05


class Fleet:
    """A fleet tier whose worker is this object; `answers` says whether it answers questions for its state."""

    def __init__(self, segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.reads, options = LowerTierReads(segments.owner, 1, loop), RemoteOptions(url="file:///pages")
        self.reports: list[FleetStatus] = []
        self.commands: list[Command] = []
        self.replaced: list[str] = []
        self.answers = True
        self.tier = FleetTier(segments, options, self.reads, self.reports.append, loop, Path("socket"))
        monkeypatch.setattr(self.tier._supervisor, "replace", self.replaced.append)
        self.timeout = options.timeout
        self.tier.started(0, self.send)

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if self.answers and isinstance(command, GetState):
            asyncio.get_running_loop().call_soon(self.tier.hear, FleetReport(STATE))

    def note_stored(self) -> None:
        """Notes a page that an engine has stored."""
        pages = page_requests(os.urandom(KEY_BYTES), struct.pack("<Q", 4096))
        request = Reserve(1, Space(bytes(KEY_BYTES), "model", 16), 0, 1, pages)
        granted = answer_rows(bytes([ReserveOutcome.GRANTED]), bytes(4), bytes(8))
        self.tier.note_stored(request, Reserved(1, granted), 4096)

    @property
    def writes(self) -> list[Write]:
        return [command for command in self.commands if isinstance(command, Write)]

    async def lives(self, seconds: float) -> None:
        """Lets the daemon take its turns for so long."""
        for _ in range(round(seconds / TURN_S)):
            self.tier.tidy()
            await loop_clock.pause(TURN_S)


async def test_a_worker_that_answers_stays_and_a_silent_one_is_replaced(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.tier.hear(FleetOpened(STATE))
    await fleet.lives(60.0)
    assert not fleet.replaced and 57 <= fleet.commands.count(GetState()) <= 60, "it is asked once a second"
    fleet.answers = False
    await fleet.lives(3.9)  # since its last answer: docs/fleet.md says five
    assert not fleet.replaced
    await fleet.lives(1.2)
    assert fleet.replaced == ["did not answer and was killed"]


async def test_a_worker_is_not_silent_while_the_daemon_does_not_run(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.tier.hear(FleetOpened(STATE))
    await fleet.lives(3.0)
    await loop_clock.pause(50.0)  # stopped, or without a core
    await fleet.lives(3.0)
    assert not fleet.replaced
    fleet.answers = False
    await fleet.lives(5.1)
    assert fleet.replaced == ["did not answer and was killed"]


async def test_a_worker_has_time_to_open_its_fleet(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.answers = False
    await fleet.lives(30.0)
    assert not fleet.replaced
    await fleet.lives(0.1)
    assert fleet.replaced == ["did not answer and was killed"]


async def test_a_worker_gets_pages_to_read_when_it_has_opened_the_fleet(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then no engine is to wait for it: the store may hang in the opening."""
    fleet, outcomes, space = Fleet(segments, monkeypatch), list[FetchOutcome](), Space(bytes(KEY_BYTES), "model", 16)
    slot = segments.owner.attach(os.getpid(), os.geteuid(), 1, 0, "fleet")
    fleet.tier.started(slot, fleet.send)
    number = segments.owner.space(space.digest, space.name, space.page_tokens, 0, 0)
    request = FetchLocated(1, LOCATED_PAGES.pack([LocatedPage(bytes(KEY_BYTES), 4096, 0)]), 0.0, (space,))

    def ask() -> None:
        fleet.reads.ask_located(request, lambda answer: outcomes.append(FetchOutcome(answer.outcomes[0])), [number])

    ask()
    fleet.tier.hear(FleetOpened(STATE))
    ask()
    assert outcomes == [FetchOutcome.ABSENT, FetchOutcome.PENDING]
    assert sum(isinstance(command, Read) for command in fleet.commands) == 1
    fleet.tier.ended(slot, "killed")


async def test_a_page_that_cannot_be_read_is_absent_for_ten_seconds(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/fleet.md says: the store may claim that it has it."""
    fleet, key = Fleet(segments, monkeypatch), bytes(KEY_BYTES)
    monkeypatch.setattr(fleet.tier._reads, "end_pages", lambda *_: SimpleNamespace(nbytes=0, read=0, unread=1))
    fleet.tier.hear(FleetOpened(STATE))
    fleet.tier.hear(HasRead(0, 0, bytes(1), key, ""))
    began = loop_clock.now()
    absent = fleet.tier.questions.absent
    assert absent.has(key, began + 9.9) and not absent.has(key, began + 10.1)


async def test_pages_that_are_not_tried_after_one_that_failed_do_not_close_the_fleet(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object that cannot be read fails a request of many pages, which are reported in parts."""
    fleet = Fleet(segments, monkeypatch)
    monkeypatch.setattr(fleet.tier._reads, "end_pages", lambda *_: SimpleNamespace(nbytes=0, read=0, unread=1))
    fleet.tier.hear(FleetOpened(STATE))
    for reason in ("EIO", *[UNTRIED] * FAILURES, "EIO", UNTRIED):
        fleet.tier.hear(HasRead(0, 0, bytes(1), b"", reason))
    assert not fleet.tier.report.breaker_open
    fleet.tier.hear(HasRead(0, 0, bytes(1), b"", "EIO"))
    assert fleet.tier.report.breaker_open and fleet.tier.report.trouble == "EIO"


async def test_what_workers_count_is_counted_since_the_start_of_the_daemon(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, counted = Fleet(segments, monkeypatch), list[tuple[int, int, int]]()
    for _ in range(3):
        fleet.tier.hear(FleetOpened(STATE))
        fleet.tier.hear(FleetReport(FleetState(url=STATE.url, lent_bytes=4096, damaged=1, foreign=1)))
        fleet.tier.hear(FleetReport(FleetState(url=STATE.url, lent_bytes=4096, damaged=2, foreign=3)))
        fleet.tier.ended(0, "killed")
        fleet.tier.ended(0, "it cannot be opened")
        counted.append((fleet.tier.report.damaged, fleet.tier.report.foreign, fleet.tier.report.lent_bytes))
        fleet.tier.started(0, fleet.send)
    assert counted == [(2, 3, 0), (4, 6, 0), (6, 9, 0)]


async def test_a_worker_that_loses_a_command_is_replaced(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.tier.hear(FleetOpened(STATE))
    fleet.note_stored()
    await fleet.lives(1.0)  # until it is written
    assert len(fleet.writes) == 1
    await fleet.lives(fleet.timeout * (_PATIENCE + 1) - 1.0)
    assert not fleet.replaced
    await fleet.lives(1.0)
    assert set(fleet.replaced) == {"did not answer a command for 1 page within 22 s"}


@pytest.mark.parametrize("untried", [Stored.GONE, Stored.NO_ROOM])
async def test_pages_that_are_not_tried_do_not_say_that_the_fleet_takes_pages(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, untried: Stored
) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.tier.hear(FleetOpened(STATE))
    fleet.note_stored()
    for stored, why in (*[(Stored.FAILED, "full")] * FAILURES, (untried, "")):
        before = len(fleet.writes)
        while len(fleet.writes) == before:
            await fleet.lives(TURN_S)
        fleet.tier.hear(Wrote(fleet.writes[-1].number, bytes([stored]), why, 0))
    writes = fleet.tier._health.writes
    assert fleet.tier.writes.counts.failed == 1 and writes.is_open and writes.take_probe(loop_clock.now())


async def test_the_status_has_no_secrets_before_a_worker_opens_the_fleet(segments: Segments) -> None:
    loop = asyncio.get_running_loop()
    reads = LowerTierReads(segments.owner, 1, loop)
    options = RemoteOptions(url="s3://key:secret@pages/kv?endpoint=https://s3.example")
    fleet = FleetTier(segments, options, reads, lambda status: None, loop, Path("socket"))
    assert fleet.report.url == "s3://pages/kv"


async def test_why_there_is_no_fleet_is_logged_once_until_it_opens(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(segments, monkeypatch)
    why = "remote.key_file needs cryptography: pip install 'pagetier[fleet-key]'"
    for reason in (why, why, "another reason", "another reason"):
        fleet.tier.ended(0, reason)
        fleet.tier.failed(reason)
    fleet.tier.started(0, fleet.send)
    fleet.tier.hear(FleetOpened(STATE))
    fleet.tier.ended(0, why)
    lines = [record.message for record in caplog.records if "no fleet" in record.message]
    assert lines == [f"no fleet: {reason}; serving from this host only" for reason in (why, "another reason", why)]
    assert fleet.tier.report.trouble == why


@pytest.mark.parametrize("call", [Call.READ, Call.WRITE])
async def test_a_fault_that_comes_back_within_a_minute_is_logged_if_it_lasts(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: Call
) -> None:
    fleet = Fleet(segments, monkeypatch)
    fleet.tier.hear(FleetOpened(STATE))
    caplog.set_level("INFO")
    for trouble in (*["first"] * FAILURES, "", *["second"] * FAILURES):
        fleet.tier._health.judge(call, trouble)
    assert ["first" in record.message for record in caplog.records] == [True, False], "one line a minute, and the end"
    await fleet.lives(MINUTE_S + 2.0)
    assert ["second" in record.message for record in caplog.records] == [False, False, True]


async def test_pages_that_are_given_up_are_counted_in_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    health = FleetHealth(lambda: None)
    for pages in (0, 3, 3, 5):
        health.report_given_up(pages, "full")
    await loop_clock.pause(MINUTE_S)
    health.report_given_up(5, "full")
    assert [record.getMessage().partition(" and")[0] for record in caplog.records] == [
        "3 pages were given up",
        "2 pages were given up",
    ]
