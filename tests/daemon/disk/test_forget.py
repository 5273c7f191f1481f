"""Tests `pagetier flush --keys-file`: given pages leave memory and disk, and nothing brings them back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bare_engine import Engine, content_of
from disk_daemon import FRAMES, write_through
from numbered_pages import key_of
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import Pins
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import FORGET_KEYS
from two_devices import TwoDevices

PAGES = 64


@pytest.fixture
def daemon() -> Iterator[TwoDevices]:
    with TwoDevices() as daemon:
        yield daemon
        assert daemon.findings() == []


@pytest.fixture
def numbers(daemon: TwoDevices) -> range:
    return daemon.fill(PAGES)


def file_of(folder: Path, numbers: Iterable[int]) -> str:
    file = folder / "keys"
    file.write_text("".join(f"{key_of(number).hex()}  # page {number}\n" for number in numbers))
    return str(file)


def arena(daemon: TwoDevices) -> bytes:
    """Returns the bytes of the arena, as another process of this user can read them."""
    return Path(f"/dev/shm/{daemon.name}.arena").read_bytes()


def test_forgotten_pages_leave_both_tiers_of_both_devices(daemon: TwoDevices, numbers: range, tmp_path: Path) -> None:
    with Engine(daemon) as engine:
        in_memory = [number for number in numbers if engine.where(number) == "memory"]
        gone = [*numbers[:8], *in_memory[-2:]]
        assert all(content_of(number)[:64] in arena(daemon) for number in in_memory)
        done = daemon.pagetier("flush", "--keys-file", file_of(tmp_path, [*gone, 99_999]), "--yes")
        assert done.exit_code == 0, done.output
        assert done.output == (
            f"{len(gone) + 1} pages named\n{len(gone)} pages forgotten: overwritten in memory, discarded on disk (the"
            " bytes stay in its files until the space is used again); 1 in no tier\n"
        )
        assert engine.places(gone) == {"nowhere": len(gone)}
        assert not any(content_of(number)[:64] in arena(daemon) for number in in_memory[-2:])
        assert engine.places(numbers)["nowhere"] == len(gone)
    daemon.kill()
    daemon.open("--fresh")
    with Engine(daemon) as later:
        assert later.places(numbers) == {"nowhere": len(gone), "disk": PAGES - len(gone)}


def test_a_device_that_is_away_forgets_them_when_it_is_back(daemon: TwoDevices, numbers: range, tmp_path: Path) -> None:
    with Engine(daemon) as engine:
        worker = daemon.worker_of(0)
        away = daemon.folders[0].rename(daemon.folders[0].with_name("away"))
        daemon.folders[0].write_text("a file")
        os.kill(worker, signal.SIGKILL)
        daemon.until_device(0, Standing.DOWN, "is a file")
        done = daemon.pagetier("flush", "--keys-file", file_of(tmp_path, numbers[::2]), "--yes")
        assert done.exit_code == Exit.WRONG, done.output
        assert f"{daemon.folders[0]}: the disk tier is not open" in " ".join(done.output.split()), done.output
        daemon.folders[0].unlink()
        away.rename(daemon.folders[0])
        daemon.wait_open()
        assert engine.places(numbers[::2]) == {"nowhere": PAGES // 2}
        assert engine.places(numbers[1::2])["nowhere"] == 0


def test_pages_in_use_stay_and_are_counted(tmp_path: Path) -> None:
    with write_through() as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(FRAMES // 2))
        many = range(FORGET_KEYS + 10)
        with engine.session.match(Pins, None, key_of(0)):
            done = daemon.pagetier("flush", "--keys-file", file_of(tmp_path, many), "--yes")
        assert done.exit_code == Exit.WRONG and "1 page in use and kept" in done.output, done.output
        assert engine.places(many)["memory"] == 1


@pytest.mark.parametrize("more", [["--all"], ["--namespace", "x"], ["--to-disk"], ["--tier", "memory"]])
def test_what_excludes_a_file_of_keys(daemon: TwoDevices, tmp_path: Path, more: list[str]) -> None:
    done = daemon.pagetier("flush", "--keys-file", file_of(tmp_path, [1]), *more)
    assert done.exit_code == Exit.USAGE, done.output
