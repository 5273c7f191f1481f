"""Tests which pages are written and when: ahead of need, all at once, or after a second use; and which are lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from bare_engine import Engine
from daemon_turns import Turns
from disk_daemon import DiskDaemon
from eventually import eventually
from metrics_scrape import scrape, value
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.protocol import FetchOutcome

FRAMES = 32
CLEAN_FRAMES = 8  # a quarter of the frames
_TO_WRITE = 6  # turns in which the disk writes what it was sent


def unwritten(daemon: DiskDaemon) -> int:
    """Returns the number of stored pages that are not written yet; reads from disk are granted room, too."""
    header = daemon.header()
    ended = header.disk_written + header.disk_skipped + header.disk_failed + header.disk_lost
    return header.granted - header.disk_read - ended


def wait_for_writes(daemon: DiskDaemon, room: int) -> None:
    """Waits until at most `room` pages are unwritten."""
    assert eventually(lambda: unwritten(daemon) <= room), f"{daemon.header()} {daemon.reported()}"


def store_and_wait(daemon: DiskDaemon, engine: Engine, numbers: Iterable[int], room: int) -> None:
    """Stores one page after the other, no faster than the disk writes."""
    for number in numbers:
        assert ReserveOutcome.REFUSED_FULL not in engine.store([number])
        wait_for_writes(daemon, room)


def store_each(engine: Engine, numbers: Iterable[int]) -> None:
    """Stores one page after the other."""
    for number in numbers:
        assert ReserveOutcome.REFUSED_FULL not in engine.store([number])


def test_evict_writes_the_coldest_ahead_of_need(turns: Turns) -> None:
    writes_ahead = DiskDaemon(FRAMES, "64MiB", "--constant", "disk.write_behind=0.25", before=turns.before)
    with writes_ahead as daemon, Engine(daemon) as engine:
        engine.store(range(16))
        turns.pass_by(_TO_WRITE)
        assert daemon.snapshot().disk_work.written == 0, "there is room: nothing has to leave soon"
        store_and_wait(daemon, engine, range(16, FRAMES), FRAMES - CLEAN_FRAMES)
        assert eventually(lambda: daemon.snapshot().tiers.disk.pages >= CLEAN_FRAMES)
        turns.pass_by(_TO_WRITE)
        assert daemon.snapshot().tiers.disk.pages < 20
        assert engine.available_pages([0])[0] in (0, 1)
        assert engine.fetch([0]) == [FetchOutcome.IN_MEMORY]
        store_and_wait(daemon, engine, range(100, 200), FRAMES - CLEAN_FRAMES)
        assert engine.places([*range(FRAMES), *range(100, 200)])["nowhere"] <= 4
        work = daemon.snapshot().disk_work
        assert work.lost <= 4
        assert work.written >= 100


def test_writing_ahead_follows_the_rate_of_stores() -> None:
    """A share of a small arena is less than one prompt, so that pages left memory unwritten beside an idle disk."""
    with DiskDaemon(15, "64MiB") as daemon, Engine(daemon) as engine:
        for prompt in range(12):
            engine.store(range(7 * prompt, 7 * prompt + 7))
            wait_for_writes(daemon, 8)
        assert daemon.snapshot().disk_work.lost == 0
        assert engine.places(range(84))["nowhere"] == 0


def test_through_writes_everything_soon() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.write=through") as daemon, Engine(daemon) as engine:
        engine.store(range(8))
        assert eventually(lambda: daemon.snapshot().tiers.disk.pages == 8)
        assert engine.places(range(8)) == {"memory": 8}
        assert daemon.until(lambda disk: disk.clean), "it is synced when nothing is written"
        assert daemon.report().last_sync > 0
        assert "synced" in " ".join(daemon.pagetier("stats").output.split())


def test_second_writes_pages_that_were_used_again(turns: Turns) -> None:
    used_twice = DiskDaemon(FRAMES, "64MiB", "--set", "disk.write=second", before=turns.before)
    with used_twice as daemon, Engine(daemon) as engine:
        engine.store(range(4))
        store_each(engine, range(100, 104))
        assert engine.places(range(4)) == {"memory": 4}  # used again
        turns.pass_by()
        first_eviction = 200 + FRAMES - 8  # finds the pages that were used again, and there is time to write them
        store_each(engine, range(200, first_eviction + 1))
        assert eventually(lambda: daemon.snapshot().disk_work.written == 4), daemon.reported()
        store_each(engine, range(first_eviction + 1, 200 + FRAMES))
        store_each(engine, range(300, 300 + FRAMES))
        assert engine.places(range(4)) == {"disk": 4}
        assert engine.places(range(100, 104)) == {"nowhere": 4}
        assert daemon.snapshot().disk_work.written < 20
        assert engine.fetch(range(4)) == [FetchOutcome.IN_MEMORY] * 4


@pytest.mark.parametrize("write", ["evict", "through", "second"])
def test_a_disk_smaller_than_memory_is_not_written_again_and_again(write: str, turns: Turns) -> None:
    flags = ("--set", f"disk.write={write}", "--constant", "disk.write_behind=0.9")
    with DiskDaemon(128, "8MiB", *flags, before=turns.before) as daemon, Engine(daemon) as engine:
        engine.store(range(120))
        assert engine.places(range(120)) == {"memory": 120}
        seen = -1
        while seen != (seen := daemon.snapshot().disk_work.written):
            turns.pass_by(_TO_WRITE)
            assert seen < 300, "pages push each other out"
        assert daemon.findings() == []


def test_a_full_disk_drops_the_coldest_pages() -> None:
    with DiskDaemon(FRAMES, "8MiB") as daemon, Engine(daemon) as engine:
        numbers = range(300)
        daemon.store_through(engine, numbers)
        snapshot = daemon.snapshot()
        assert snapshot.tiers.disk.evictions > 100
        assert snapshot.disk.file_bytes <= snapshot.disk.cap == 8 << 20
        assert snapshot.tiers.disk.bytes <= 8 << 20
        assert engine.where(0) == "nowhere"
        assert engine.places(numbers[-40:])["nowhere"] == 0
        assert engine.fetch(numbers[-40:-30]) == [FetchOutcome.IN_MEMORY] * 10
        assert engine.places(numbers[-40:-30]) == {"memory": 10}


def budgeted(daemon: DiskDaemon, engine: Engine) -> tuple[list[range], list[int]]:
    """Returns chains of eight pages, and how many pages of each are found."""
    chains = [range(first, first + 8) for first in range(0, 400, 8)]
    for chain in chains:
        engine.store(chain)
        wait_for_writes(daemon, FRAMES - CLEAN_FRAMES)
    store_and_wait(daemon, engine, range(10_000, 10_000 + FRAMES), FRAMES - CLEAN_FRAMES)
    return chains, [engine.available_pages(chain)[1] for chain in chains]


def test_a_budget_is_spent_on_whole_prefixes() -> None:
    flags = ("--constant", "disk.write_behind=0.25", "--set", f"disk.budget={100 * 60_000}")
    with DiskDaemon(FRAMES, "64MiB", *flags) as daemon, Engine(daemon) as engine:
        chains, reached = budgeted(daemon, engine)
        assert daemon.until(lambda disk: disk.budget and disk.budget.skipped_bytes), daemon.reported()
        snapshot = daemon.snapshot()
        assert snapshot.disk.budget is not None
        assert snapshot.disk.budget.left < 8 * 60_000
        assert snapshot.tiers.disk.pages <= 100
        assert snapshot.tiers.disk.pages >= 40
        assert snapshot.disk.budget.per_day == 6_000_000
        assert snapshot.disk_work.skipped > 0
        assert snapshot.disk_work.failed == 0
        assert "not written, since disk.budget was spent" in " ".join(daemon.pagetier("stats").output.split())
        for chain, length in zip(chains, reached, strict=True):
            found = engine.places(chain)
            assert found["disk"] + found["memory"] == length, "a chain has a hole"
        assert 0 in reached
        assert "per day may be written now" in " ".join(daemon.pagetier("stats").output.split())
        assert "raise disk.budget" in daemon.doctor()


def test_a_budget_pays_for_what_follows_a_page_that_was_read_back() -> None:
    flags = ("--set", "disk.write=through", "--set", "disk.budget=1GiB")
    with DiskDaemon(FRAMES, "64MiB", *flags) as daemon, Engine(daemon) as engine:
        engine.store(range(8))
        store_and_wait(daemon, engine, range(100, 100 + FRAMES), 0)
        assert engine.places(range(8)) == {"disk": 8}
        assert engine.fetch(range(8)) == [FetchOutcome.IN_MEMORY] * 8
        engine.store(range(16))
        wait_for_writes(daemon, 0)
        store_and_wait(daemon, engine, range(200, 200 + FRAMES), 0)
        assert engine.places(range(16)) == {"disk": 16}
        assert daemon.snapshot().disk_work.skipped == 0


def test_a_page_larger_than_the_disk_stays_in_memory_only() -> None:
    with DiskDaemon(FRAMES, "8MiB", "--set", "disk.write=through") as daemon, Engine(daemon) as engine:
        engine.store(range(4))
        assert eventually(lambda: daemon.snapshot().tiers.disk.pages == 4)
        assert engine.places(range(4)) == {"memory": 4}


def test_pages_that_a_slow_disk_loses_are_counted(tmp_path: Path) -> None:
    """No store waits for the disk, which writes nothing, and no page leaves but to make room for a store."""
    metrics, pages = tmp_path / "metrics", range(3 * FRAMES)
    options = (f"--set=metrics.listen={metrics}", "--constant=disk.store_timeout=0", "--set=evict.free=0")
    with DiskDaemon(FRAMES, "64MiB", *options) as daemon, Engine(daemon) as engine, daemon.stopped_worker():
        store_each(engine, pages)
        lost = engine.places(pages)["nowhere"]
        assert lost == 2 * FRAMES
        assert eventually(lambda: value(scrape(metrics), "pagetier_lost_pages_total") == lost), daemon.header()
