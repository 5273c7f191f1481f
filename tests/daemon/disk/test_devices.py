"""Tests a disk tier of two devices: one that dies, hangs, fails or fills costs its own pages alone, and is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bare_engine import SPACE, Engine
from daemon_turns import Turns
from disk_daemon import FRAME, FRAMES
from eventually import eventually
from file_changes import write_at
from numbered_pages import key_of
from pagetier.daemon.metrics.disk_families import device_families
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.protocol import FetchOutcome
from small_file_systems import small_file_system
from two_devices import TwoDevices

PAGES = 64
FOREVER_S = 3600.0  # a device that has hung for two seconds is not waited for, however patient the request is


@pytest.fixture
def daemon(turns: Turns) -> Iterator[TwoDevices]:
    with TwoDevices(before=turns.before) as daemon:
        yield daemon
        assert daemon.findings() == []


@pytest.fixture
def engine(daemon: TwoDevices) -> Iterator[Engine]:
    with Engine(daemon) as engine:
        yield engine


@pytest.fixture
def numbers(daemon: TwoDevices, engine: Engine) -> range:
    """Pages that are on disk, about half of them on each device."""
    numbers = daemon.store_through(engine, range(PAGES))
    until_counted(daemon, PAGES)
    assert min(daemon.device(0).pages, daemon.device(1).pages) > PAGES // 4, daemon.reported()
    return numbers


def until_counted(daemon: TwoDevices, pages: int) -> None:
    """Waits until the reports of the devices say that they have so many pages."""
    assert daemon.until(lambda disk: sum(device.pages for device in disk.devices) == pages), daemon.reported()


def available(engine: Engine, numbers: range) -> int:
    places = engine.places(numbers)
    return places["disk"] + places["memory"]


def store_as_fast_as_written(daemon: TwoDevices, engine: Engine, numbers: range, turns: Turns) -> None:
    """Stores pages, none faster than the device that answers writes those before: it would lose them from memory."""
    least = daemon.header().disk_pages - FRAMES // 2  # the others are still in memory
    for first in range(numbers.start, numbers.stop, 4):
        assert ReserveOutcome.REFUSED_FULL not in engine.store(range(first, first + 4))
        least += 4
        assert eventually(partial(has_on_disk, daemon, least)), daemon.reported()
        turns.pass_by(1)


def has_on_disk(daemon: TwoDevices, pages: int) -> bool:
    return daemon.header().disk_pages >= pages


def standings(daemon: TwoDevices) -> set[tuple[str, str]]:
    """Returns the folder and the state of each device by the metrics."""
    families = device_families(daemon.report().devices, FRAME)
    (standing,) = (family for family in families if family.name == "pagetier_device_standing")
    return {(sample.labels["folder"], sample.labels["state"]) for sample in standing.samples if sample.value}


def test_pages_lie_on_both_and_come_back_from_both(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    assert daemon.read_all(engine, numbers) == PAGES
    names = {slot.pid for slot in daemon.slots() if slot.name == "disk tier"}
    assert names == {daemon.worker_of(0), daemon.worker_of(1)}
    engine.close()
    daemon.stop()
    daemon.open()
    with Engine(daemon) as later:
        assert later.places(numbers) == {"disk": PAGES} and daemon.read_all(later, numbers) == PAGES
        assert daemon.header().disk_pages == PAGES


def test_one_request_reads_from_both(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    daemon.store_through(engine, range(1000, 1000 + FRAMES))
    few = [number for number in numbers if engine.where(number) == "disk"][: FRAMES // 4]
    assert engine.fetch(few) == [FetchOutcome.IN_MEMORY] * len(few)
    assert engine.places(few) == {"memory": len(few)}


@pytest.mark.parametrize("number", [0, 1])
def test_a_device_that_dies_takes_its_own_pages_along(
    daemon: TwoDevices, engine: Engine, numbers: range, number: int
) -> None:
    lost, stays = daemon.folders[number], daemon.device(1 - number).pages
    away = daemon.replace_device(number, "a file")
    daemon.until_device(number, Standing.DOWN, "is a file")
    assert eventually(lambda: daemon.header().disk_pages >= stays)
    in_memory = engine.places(numbers)["memory"]
    assert stays <= available(engine, numbers) <= stays + in_memory
    daemon.store_through(engine, range(2000, 2000 + PAGES))
    assert daemon.read_all(engine, range(2000, 2000 + PAGES)) == PAGES, "the other device takes all pages"
    named = f"the disk tier in {lost} is down: "
    assert len(daemon.lines(named)) >= 1 and not daemon.lines("no disk tier"), daemon.reported()
    assert f"{lost} down" in daemon.pagetier("stats").output
    assert f"{lost}: " in daemon.report().trouble and daemon.report().standing is Standing.OPEN
    checked = daemon.pagetier("doctor", "--config", str(daemon.config)).output
    assert f"{lost} is down" in checked and f"{daemon.folders[1 - number]} is open" in checked
    assert f"{lost} down" in daemon.pagetier("top", "--once").output
    assert standings(daemon) == {(str(lost), "down"), (str(daemon.folders[1 - number]), "open")}
    lost.unlink()
    away.rename(lost)
    daemon.wait_open()
    assert daemon.read_all(engine, numbers) == PAGES, "its pages are back with it"


def test_a_device_that_hangs(daemon: TwoDevices, engine: Engine, numbers: range, turns: Turns) -> None:
    on_first = daemon.device(0).pages
    daemon.store_through(engine, range(3000, 3000 + FRAMES))  # evicts the others from memory
    with daemon.stopped_device(0):
        assert FetchOutcome.PENDING in engine.fetch(numbers, 2.5)
        there = sum(engine.fetch([number], FOREVER_S) == [FetchOutcome.IN_MEMORY] for number in numbers)
        assert PAGES - on_first - FRAMES <= there <= PAGES - on_first + FRAMES
        stored = range(4000, 4000 + PAGES)
        store_as_fast_as_written(daemon, engine, stored, turns)
        daemon.until_device(0, Standing.OPEN, "the disk has not answered")
        assert eventually(lambda: available(engine, stored) >= PAGES - FRAMES), engine.places(stored)
        assert f"{daemon.folders[0]}: the disk has not answered" in daemon.log.read_text()
    assert eventually(lambda: not daemon.report().trouble), daemon.reported()
    assert not daemon.save().trouble
    assert daemon.read_all(engine, numbers) == PAGES


def test_a_replaced_device_starts_empty(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    first, second = daemon.device(0).pages, daemon.device(1).pages
    restarts = daemon.report().restarts
    daemon.replace_device(0)
    daemon.wait_open(restarts + 1)
    assert daemon.lines(f"the disk tier in {daemon.folders[0]} is down: "), daemon.reported()
    in_memory = engine.places(numbers)["memory"]
    assert second <= available(engine, numbers) <= second + in_memory
    daemon.save()
    until_counted(daemon, daemon.header().disk_pages)
    assert daemon.device(0).pages <= in_memory < first + second


def test_damage_costs_the_pages_of_one_device(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    first = daemon.device(0).pages
    daemon.store_through(engine, range(3000, 3000 + FRAMES))
    for file in daemon.folders[0].glob("*/frames.*"):
        for at in range(0, file.stat().st_size, FRAME):
            write_at(file, at, b"\xff" * 64)
    read = daemon.read_all(engine, numbers)
    assert PAGES - first <= read < PAGES, daemon.reported()
    assert daemon.device(1).damaged == 0 and not daemon.device(1).trouble
    daemon.wait_open()


def test_a_device_that_is_full() -> None:
    with small_file_system("8m") as small:
        daemon = TwoDevices()
        daemon.folders[0] = small / "disk"
        with daemon, Engine(daemon) as engine:
            daemon.store_through(engine, range(400))
            assert eventually(lambda: any(str(small) in line for line in daemon.lines("is full"))), daemon.reported()
            assert not daemon.save().trouble, "the other device writes what this one cannot"
            assert daemon.read_all(engine, range(380, 400)) == 20
            assert daemon.device(1).pages > daemon.device(0).pages, daemon.reported()
            assert not daemon.device(1).trouble, daemon.reported()
            assert daemon.report().standing is Standing.OPEN
            assert daemon.findings() == []


def test_a_reload_adds_and_removes_a_device(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    second = daemon.device(1).pages
    assert "disk.path = " in daemon.reload(daemon.text(1))
    assert daemon.until(lambda disk: len(disk.devices) == 1), daemon.reported()
    in_memory = engine.places(numbers)["memory"]
    assert second <= available(engine, numbers) <= second + in_memory
    assert daemon.folders[0].is_dir() and daemon.lines(f"disk tier in {daemon.folders[0]}: removed, its files stay")
    shutil.rmtree(daemon.folders[0])
    daemon.reload(daemon.text())
    daemon.wait_open()
    assert daemon.report().devices[1].folder == str(daemon.folders[0])
    more = daemon.store_through(engine, range(5000, 5000 + PAGES))
    assert daemon.read_all(engine, more) == PAGES
    until_counted(daemon, daemon.header().disk_pages)
    assert daemon.device(0).pages >= PAGES // 3, "pages go to the added device too"
    assert "disk.path" in daemon.reload('[disk]\npath = ""\nsize = "0"\n')
    assert len(daemon.report().devices) == 2, "only a restart removes the whole tier"


@pytest.mark.parametrize("removed", ["before the flush", "after it"])
def test_flushed_pages_do_not_come_back_with_a_device_that_a_reload_adds_again(
    daemon: TwoDevices, engine: Engine, numbers: range, tmp_path: Path, removed: str
) -> None:
    """First single pages, then a namespace."""
    away = daemon.replace_device(0, "a file")
    daemon.until_device(0, Standing.DOWN, "is a file")
    if removed == "before the flush":
        remove_first(daemon)
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key_of(number).hex()}\n" for number in numbers[:9]))
    daemon.pagetier("flush", "--keys-file", str(keys), "--yes")
    bring_back(daemon, away, removed)
    assert engine.places(numbers[:9]) == {"nowhere": 9}
    assert engine.places(numbers[9:])["disk"] > 0
    away = daemon.replace_device(0, "a file")
    daemon.until_device(0, Standing.DOWN, "is a file")
    if removed == "before the flush":
        remove_first(daemon)
    daemon.pagetier("flush", "--namespace", SPACE.name, "--yes")
    bring_back(daemon, away, removed)
    assert engine.places(numbers) == {"nowhere": PAGES}
    until_counted(daemon, 0)


def remove_first(daemon: TwoDevices) -> None:
    """Removes the first device by a reload, and waits until it is gone."""
    daemon.reload(daemon.text(1))
    assert daemon.until(lambda disk: len(disk.devices) == 1), daemon.reported()


def bring_back(daemon: TwoDevices, away: Path, removed: str) -> None:
    """Puts the folder of the first device back, and adds it by a reload after it was removed by one."""
    if removed == "after it":
        remove_first(daemon)
    daemon.folders[0].unlink()
    away.rename(daemon.folders[0])
    daemon.reload(daemon.text())
    daemon.wait_open()


def test_a_device_that_hangs_is_removed(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    second = daemon.device(1).pages
    with daemon.stopped_device(0):
        daemon.reload(daemon.text(1))
        assert daemon.until(lambda disk: len(disk.devices) == 1), daemon.reported()
    assert second <= available(engine, numbers) <= second + engine.places(numbers)["memory"]
    assert len(daemon.slots()) == 2, "the other worker and the engine"


def test_both_workers_die_while_engines_store(daemon: TwoDevices, engine: Engine) -> None:
    for first in range(0, 200, 8):
        assert ReserveOutcome.REFUSED_FULL not in engine.store(range(first, first + 8))
        if first % 40 == 0:
            restarts = daemon.report().restarts
            daemon.kill_device(first // 40 % 2)
            assert daemon.until(lambda disk, before=restarts: disk.restarts > before), daemon.reported()
            daemon.wait_open()
    assert not daemon.save().trouble
    engine.places(range(200))  # compares the bytes of those in memory
    daemon.read_all(engine, [number for number in range(200) if engine.where(number) == "disk"])


def test_a_new_daemon_adopts_memory_beside_two_devices(daemon: TwoDevices, engine: Engine, numbers: range) -> None:
    daemon.kill()
    daemon.open()
    assert daemon.header().disk_pages == PAGES
    with Engine(daemon) as later:
        assert daemon.read_all(later, numbers) == PAGES


def test_a_tier_of_one_device_is_opened_among_two(tmp_path: Path) -> None:
    daemon = TwoDevices(folders=[tmp_path / "old"])
    with daemon, Engine(daemon) as engine:
        numbers = daemon.store_through(engine, range(PAGES))
        engine.close()
        daemon.stop()
        daemon.folders.insert(0, tmp_path / "new")
        daemon.open()
        with Engine(daemon) as later:
            assert daemon.read_all(later, numbers) == PAGES
            assert daemon.device(1).pages + daemon.device(0).pages == PAGES
