"""Tests the quota of pinned pages, and that the log names the processes that pin most when no page can be evicted."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core_records import attachment_with, counts_with, header_with
from eventually import eventually
from pagetier.client import Client, Keys
from pagetier.client.adapters import adopt
from pagetier.daemon.common.log_throttle import MINUTE_S
from pagetier.daemon.index.engine_names import EngineNames
from pagetier.daemon.index.quotas import PinQuota
from pagetier.shm._core import AttachmentRecord, IndexHeader
from running_daemon import RunningDaemon, namespace
from virtual_time_loop import OwnTimeLoop

FRAME, FRAMES, SHARE = 64 << 10, 1024, 512
PAGES, PROMPTS = 64, 15  # of 64 frames each: some stay free, so that no page is evicted ahead of need


class Index:
    """A fake owner of the index."""

    def __init__(self, frames: int = 2000) -> None:
        self.frames, self.most = frames, -1
        self.slots: list[AttachmentRecord] = []

    def header(self) -> IndexHeader:
        return header_with(frames=self.frames, arena_bytes=self.frames << 20)

    def set_pin_quota(self, frames: int) -> None:
        self.most = frames

    def matches_at_quota(self) -> int:
        return sum(slot.counts.bounded for slot in self.slots)

    def attachments(self) -> list[AttachmentRecord]:
        return self.slots

    attachments_with_pins = attachments

    def has(self, slot: int, bounded: int = 0, mib: int = 0, since: int = 1) -> None:
        self.slots = [other for other in self.slots if other.slot != slot]
        numbers = {"slot": slot, "pid": 100 + slot, "attached_ns": since, "pinned_bytes": mib << 20}
        self.slots.append(attachment_with(f"engine {slot}", counts_with(bounded=bounded), **numbers))


def pinning(index: Index, share: float = 0.5) -> PinQuota:
    return PinQuota(index, EngineNames(index), share)  # type: ignore[arg-type]


@pytest.mark.usefixtures("virtual_time")
def test_the_pin_quota_is_a_share_of_a_large_arena() -> None:
    index = Index()
    quota = pinning(index)
    assert index.most == 1000
    quota.follow(0.9)
    assert index.most == 1800
    quota.follow(0.0)
    assert index.most == 0
    small = Index(1023)
    pinning(small)
    assert small.most == 0


@pytest.mark.usefixtures("virtual_time")
def test_each_attachment_at_the_quota_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    index = Index()
    quota = pinning(index)
    for bounded in (1, 2, 3):
        index.has(3, bounded)
        index.has(4)
        quota.check()
    assert [line.getMessage() for line in caplog.records] == [
        "process 103 (engine 3) has reached its quota of pinned pages (arena.process_share): its matches end there"
    ]
    index.slots.clear()
    quota.check()
    index.has(3, 1, since=2)
    quota.check()
    assert len(caplog.records) == 2


def test_pinning_processes_are_logged_at_most_once_a_minute(
    caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop
) -> None:
    index = Index()
    quota = pinning(index)
    index.has(1, mib=200)
    quota.full()
    assert not caplog.records, "the pins are not the reason for the rejection"
    virtual_time.passes(MINUTE_S)
    index.has(2, mib=900)
    for _ in range(100):
        quota.full()
    (line,) = caplog.records
    assert line.getMessage() == (
        "stores are rejected, most of the arena (2000 MiB) is pinned: process 102 (engine 2) 900 MiB,"
        " process 101 (engine 1) 200 MiB; end one of them or raise arena.size"
    )
    assert line.levelno == logging.WARNING
    virtual_time.passes(MINUTE_S)
    quota.full()
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("virtual_time")
def test_a_process_of_another_pid_namespace_is_named_by_slot_and_user(caplog: pytest.LogCaptureFixture) -> None:
    """The recorded PID is 0, or that by which an earlier daemon saw it, which may be another process's here."""
    index = Index()
    index.has(1, mib=900)
    index.has(2, mib=800)
    index.has(3, mib=200)
    index.slots[1] = index.slots[1]._replace(pid=0)
    names = EngineNames(index)  # type: ignore[arg-type]
    names.attached(1, pid=7)
    names.attached(2, pid=0)
    names.attached(3, pid=103)
    quota = PinQuota(index, names, 0.5)  # type: ignore[arg-type]
    quota.full()
    assert (
        "the process in slot 1 (engine 1 of user 0) 900 MiB, the process in slot 2 (engine 2 of user 0) 800 MiB,"
        " process 103 (engine 3) 200 MiB"
    ) in caplog.text
    index.has(1, bounded=1)
    quota.check()
    assert "the process in slot 1 (engine 1 of user 0) has reached its quota" in caplog.text
    names.freed(1)
    assert names.of(index.slots[-1]) == "process 101 (engine 1)"


# --- a real daemon ---------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), "--set", "arena.process_share=0.5") as daemon:
        yield daemon


def filled(client: Client) -> list[Keys]:
    prompts = [namespace(salt=str(number)).keys(range(16 * PAGES)) for number in range(PROMPTS)]
    for keys in prompts:
        assert client.store(keys, [bytes(FRAME)] * PAGES).stored == PAGES
    return prompts


def test_a_process_that_pins_all_it_may_leaves_half_to_others(daemon: RunningDaemon) -> None:
    with daemon.client(name="greedy") as greedy, daemon.client() as other:
        prompts = filled(other)
        held = [greedy.match(keys) for keys in prompts]
        most = SHARE // PAGES
        assert [len(match) for match in held] == [PAGES] * most + [0] * (PROMPTS - most)
        assert held[-1].available_pages == 0
        slot = next(slot for slot in daemon.slots() if slot.name == "greedy")
        assert (slot.pins, slot.pinned_bytes) == (SHARE, SHARE * FRAME)
        assert slot.counts.bounded == PROMPTS - most
        assert eventually(lambda: daemon.log.read_text().count("event=pins_bounded") == 1)
        pages = SHARE - PAGES
        new = namespace(salt="new").keys(range(16 * pages))
        assert other.store(new, [bytes(FRAME)] * pages).stored == pages
        held[0].release()
        with greedy.match(new) as match:
            assert len(match) == PAGES, "released pages can be pinned again"


def test_a_match_that_is_handed_over_counts_for_the_quota(daemon: RunningDaemon) -> None:
    with daemon.client() as scheduler, daemon.client() as worker:
        prompts = filled(scheduler)
        matches = [scheduler.match(keys) for keys in prompts[: SHARE // PAGES]]
        mine = [worker.match(keys) for keys in prompts[-4:]]
        pinned = [len(adopt(worker.session, match.to_handle())) for match in matches]
        assert pinned == [PAGES] * len(pinned), "each was released at once"
        kept = [adopt(worker.session, match.to_handle()) for match in matches]
        assert sum(map(len, kept)) == SHARE - sum(map(len, mine))
