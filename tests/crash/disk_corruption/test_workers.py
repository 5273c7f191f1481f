"""Tests that workers are not restarted for ever if the content of the disk kills them; engines notice nothing."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_corruption.file_anatomy import PAGE, Anatomy, Part
from disk_daemon import IN_LMDB, DiskDaemon
from file_changes import write_at
from pagetier.shm.protocol import FetchOutcome
from pagetier.tiers.base import TierError
from pagetier.tiers.disk import doubt, give_up
from pagetier.tiers.disk.store import DiskStore
from store_pages import keys_in, outgoings, small_tier

PAGES = 160  # two environments with leaves of headers below a branch
FRAMES = 32
F_SUBDATA = 2
FITTING = 24  # pages that one fetch may load, which uses at most nine tenths of the arena
CRASHING = """
import os, signal, sys
if "pagetier.tiers.worker" in sys.orig_argv:
    from pagetier.tiers.disk import reader
    def listed(environment):
        if environment.used:
            os.kill(os.getpid(), signal.SIGSEGV)
        return iter(())
    reader.listed = listed
"""
STUMBLING = """
import os, sys
if "pagetier.tiers.worker" in sys.orig_argv:
    from pagetier.tiers.disk import reader
    real = reader.read
    def read(environment, page):
        if not os.path.exists({flag!r}):
            open({flag!r}, "w").close()
            raise SystemError("a cursor stumbles")
        return real(environment, page)
    reader.read = read
"""


def test_a_leaf_that_kills_its_reader_fails_the_verification() -> None:
    with DiskDaemon(FRAMES, "64MiB", *IN_LMDB) as daemon:
        numbers = daemon.close_with(PAGES)
        file = daemon.data_files()[0]
        (leaf, *_) = Anatomy(file.read_bytes()).of(Part.HEADERS_LEAF)
        write_at(file, leaf * PAGE, bytes(PAGE))
        daemon.open()
        assert daemon.report().opened.startswith("rebuilt empty in 1 of 2 parts: "), daemon.reported()
        deaths = daemon.lines("no disk tier: ")
        assert len(deaths) <= 1, daemon.reported()
        with Engine(daemon) as engine:
            assert 0 < engine.places(numbers)["disk"] < PAGES
            engine.goes_on(1000)


def test_content_that_keeps_killing_workers_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tier passes the verification and still kills its workers: after two deaths the third finds it empty."""
    with DiskDaemon(FRAMES, "64MiB", *IN_LMDB) as daemon:
        numbers = daemon.close_with(8)
        (tmp_path / "sitecustomize.py").write_text(CRASHING)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            daemon.open()
        assert len(daemon.lines("no disk tier: its worker was killed by signal 11")) == 1, daemon.reported()
        assert daemon.report().restarts == 3
        assert len(daemon.lines("discarding its contents")) == 1
        assert daemon.report().opened.startswith("rebuilt empty: ")
        with Engine(daemon) as engine:
            assert engine.places(numbers) == {"nowhere": 8}
            engine.goes_on(1000)


def test_the_reason_for_rebuilding_a_part_is_logged() -> None:
    """The first error of a worker is logged, not an error that follows while it closes."""
    with DiskDaemon(FRAMES, "64MiB", *IN_LMDB) as daemon:
        daemon.close_with(8)
        for file in daemon.data_files():
            data = bytearray(file.read_bytes())
            for page in Anatomy(bytes(data)).of(Part.FRAMES_LEAF):
                (lower,) = struct.unpack_from("<H", data, page * PAGE + 12)
                for (node,) in struct.iter_unpack("<H", data[page * PAGE + 16 : page * PAGE + lower]):
                    data[page * PAGE + node + 4] ^= F_SUBDATA
            file.write_bytes(data)
        daemon.open()
        daemon.pagetier("flush", "--all", "--yes")
        assert daemon.until(lambda _: bool(daemon.lines("which verification does not detect"))), daemon.reported()
        assert daemon.until(lambda disk: "data.mdb is missing" in disk.opened), daemon.reported()
        with Engine(daemon) as engine:
            engine.goes_on(1000)


def test_a_page_with_misplaced_frames_gets_a_response() -> None:
    """Dropping the page makes LMDB fail; its request gets a response, and the other pages are read."""
    with DiskDaemon(FRAMES, "64MiB", *IN_LMDB) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(2 * FRAMES))
        for file in daemon.data_files():
            for page in Anatomy(file.read_bytes()).of(Part.VALUE_HEAD)[::4]:
                write_at(file, page * PAGE, random.Random(page).randbytes(PAGE))
        on_disk = [number for number in range(2 * FRAMES) if engine.where(number) == "disk"][:FITTING]
        # One request, because the first drop ends the worker and empties the disk.
        outcomes = engine.fetch(on_disk, 10)
        assert set(outcomes) == {FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT}, daemon.reported()
        assert outcomes.count(FetchOutcome.IN_MEMORY) > len(on_disk) // 2
        assert daemon.findings() == []
        engine.goes_on(1000)


def test_an_unexpected_error_of_a_reader_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskDaemon(FRAMES, "64MiB", *IN_LMDB) as daemon:
        numbers = daemon.close_with(8)
        (tmp_path / "sitecustomize.py").write_text(STUMBLING.format(flag=str(tmp_path / "flag")))
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            daemon.open()
        with Engine(daemon) as engine:
            assert engine.fetch(numbers[:1]) == [FetchOutcome.ABSENT]
            daemon.wait_open(1)
            assert "proven sound" in daemon.report().opened
            assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8
        assert len(daemon.lines("no disk tier: SystemError: a cursor stumbles")) == 1


def test_a_distrusted_tier_is_verified_and_a_discarded_tier_is_rebuilt(tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    doubt(folder)
    tier = small_tier(folder)
    assert tier.state().opened == "new"
    tier.write([], outgoings(range(20)))
    with pytest.raises(TierError, match="in use"):
        doubt(folder)
    tier.close()
    doubt(folder)
    assert found(folder) == (20, "proven sound in")
    assert found(folder) == (20, "as it was left")
    give_up(folder)
    assert found(folder) == (0, "rebuilt empty")
    (folder / "state").write_text("nonsense")
    doubt(folder)
    assert found(folder) == (0, "rebuilt empty")


def found(folder: Path) -> tuple[int, str]:
    """Returns the number of pages in a tier, and which of these words its message has."""
    tier: DiskStore = small_tier(folder)
    words = ("proven sound in", "as it was left", "rebuilt empty")
    held, opened = len(keys_in(tier)), tier.state().opened
    tier.close()
    return held, next(word for word in words if word in opened)
