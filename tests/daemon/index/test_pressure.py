"""What one attachment may have pinned, and who is named where nothing can be evicted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pagetier.client import Client, Keys
from pagetier.daemon.index.pressure import LOG_EVERY_S, PinQuota
from running_daemon import RunningDaemon, eventually, namespace

FRAME, FRAMES, SHARE = 64 << 10, 1024, 512
PAGES, PROMPTS = 64, 15  # of 64 frames each: some are left free, so that nothing leaves ahead of need


class Index:
    """Stands for the index's owner."""

    def __init__(self, frames: int = 2000) -> None:
        self.frames, self.most = frames, -1
        self.slots: list[dict[str, Any]] = []

    def header(self) -> dict[str, int]:
        return {"frames": self.frames, "arena_bytes": self.frames << 20}

    def bound_pins(self, frames: int) -> None:
        self.most = frames

    def bounded(self) -> int:
        return sum(slot["counts"]["bounded"] for slot in self.slots)

    def takers(self) -> list[dict[str, Any]]:
        return self.slots

    holders = takers

    def has(self, slot: int, bounded: int = 0, mib: int = 0, since: int = 1) -> None:
        self.slots = [other for other in self.slots if other["slot"] != slot]
        self.slots.append(
            {"slot": slot, "pid": 100 + slot, "name": f"engine {slot}", "attached_ns": since}
            | {"counts": {"bounded": bounded}, "pinned_bytes": mib << 20}
        )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pinning(index: Index, share: float = 0.5, clock: Clock | None = None) -> PinQuota:
    return PinQuota(index, share, clock or Clock())  # type: ignore[arg-type]


def test_the_bound_is_a_share_of_an_arena_that_is_no_ones_own() -> None:
    index = Index()
    told = pinning(index)
    assert index.most == 1000
    told.follow(0.9)
    assert index.most == 1800
    told.follow(0.0)
    assert index.most == 0
    small = Index(1023)
    pinning(small)
    assert small.most == 0


def test_each_attachment_at_the_bound_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    index = Index()
    told = pinning(index)
    for bounded in (1, 2, 3):
        index.has(3, bounded)
        index.has(4)
        told.look()
    assert [line.getMessage() for line in caplog.records] == [
        "process 103 (engine 3) has reached its quota of pinned pages (match.share): its matches end there"
    ]
    index.slots.clear()
    told.look()
    index.has(3, 1, since=2)
    told.look()
    assert len(caplog.records) == 2


def test_who_pins_is_named_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    index, clock = Index(), Clock()
    told = pinning(index, clock=clock)
    index.has(1, mib=200)
    told.full()
    assert not caplog.records, "what is pinned is not what is in the way"
    clock.now += LOG_EVERY_S
    index.has(2, mib=900)
    for _ in range(100):
        told.full()
    (line,) = caplog.records
    assert "process 102 (engine 2) 900 MiB, process 101 (engine 1) 200 MiB" in line.getMessage()
    assert line.levelno == logging.WARNING
    clock.now += LOG_EVERY_S
    told.full()
    assert len(caplog.records) == 2


# --- a real daemon ---------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), "--match-share", "0.5") as daemon:
        yield daemon


def filled(client: Client) -> list[Keys]:
    prompts = [namespace(salt=str(number)).keys(range(16 * PAGES)) for number in range(PROMPTS)]
    for keys in prompts:
        assert client.store(keys, [bytes(FRAME)] * PAGES).stored == PAGES
    return prompts


def test_who_pins_everything_leaves_half_of_it_to_others(daemon: RunningDaemon) -> None:
    with daemon.client(name="greedy") as greedy, daemon.client() as other:
        prompts = filled(other)
        held = [greedy.match(keys) for keys in prompts]
        most = SHARE // PAGES
        assert [len(match) for match in held] == [PAGES] * most + [0] * (PROMPTS - most)
        assert held[-1].available_pages == 0
        slot = next(slot for slot in daemon.slots() if slot["name"] == "greedy")
        assert (slot["pins"], slot["pinned_bytes"]) == (SHARE, SHARE * FRAME)
        assert slot["counts"]["bounded"] == PROMPTS - most
        assert eventually(lambda: daemon.log.read_text().count("event=pins_bounded") == 1)
        pages = SHARE - PAGES
        new = namespace(salt="new").keys(range(16 * pages))
        assert other.store(new, [bytes(FRAME)] * pages).stored == pages
        held[0].release()
        with greedy.match(new) as match:
            assert len(match) == PAGES, "what was let go of may be held again"


def test_a_match_that_is_handed_over_is_bounded_too(daemon: RunningDaemon) -> None:
    with daemon.client() as scheduler, daemon.client() as worker:
        prompts = filled(scheduler)
        matches = [scheduler.match(keys) for keys in prompts[: SHARE // PAGES]]
        mine = [worker.match(keys) for keys in prompts[-4:]]
        pinned = [len(worker.adopt(match.to_handle())) for match in matches]
        assert pinned == [PAGES] * len(pinned), "each was let go of at once"
        kept = [worker.adopt(match.to_handle()) for match in matches]
        assert sum(map(len, kept)) == SHARE - sum(map(len, mine))
