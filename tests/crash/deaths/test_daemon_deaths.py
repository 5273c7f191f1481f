"""Tests daemons that start at once, and daemons of another format: only one serves, and its pages are exact.

Segments that a daemon rejects are tested one by one in tests/daemon/index/test_leftover_segments.py.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, found, prompt, store
from pagetier.client import Client
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon

FORMAT_AT = 8
OTHER_FORMAT = 99


# --- two at once -----------------------------------------------------------------------------------------------------


def race(daemon: RunningDaemon, count: int, *more: str) -> tuple[list[subprocess.Popen[bytes]], list[int]]:
    """Starts this many daemons at once; returns those that serve, and the exit codes of the others."""
    racers = [daemon.launch(*more) for _ in range(count)]
    assert eventually(lambda: sum(racer.poll() is not None for racer in racers) >= count - 1)
    left = [racer for racer in racers if racer.poll() is None]
    return left, [racer.returncode for racer in racers if racer.returncode is not None]


ENDS: dict[str, Callable[[RunningDaemon], object]] = {"nothing": RunningDaemon.stop, "warm pages": RunningDaemon.kill}


@pytest.mark.parametrize("left", ENDS)
def test_only_one_of_several_daemons_that_start_at_once_serves(daemon: RunningDaemon, left: str) -> None:
    with daemon.client() as client:
        for life in range(3):
            assert store(client, prompt(life)).stored == 8
            ENDS[left](daemon)
            served, codes = race(daemon, 3)
            assert len(served) == 1 and codes == [Exit.REFUSED] * 2, daemon.log.read_text()
            daemon.process = served[0]
            assert eventually(lambda life=life: store(client, prompt(100 + life)).stored == 8)  # type: ignore[misc]
            warm = [found(client, prompt(number)) for number in range(life + 1)]
            assert warm == [8 if left == "warm pages" else 0] * (life + 1)
            assert daemon.findings() == []
    assert "Traceback" not in daemon.log.read_text()


# --- another format --------------------------------------------------------------------------------------------------


def write_format(daemon: RunningDaemon, number: int) -> int:
    """Changes the format number of the segments as an upgrade would, and returns the previous one."""
    with (Path("/dev/shm") / f"{daemon.name}.index").open("r+b") as index:
        index.seek(FORMAT_AT)
        (before,) = struct.unpack("<I", index.read(4))
        index.seek(FORMAT_AT)
        index.write(struct.pack("<I", number))
    return int(before)


def test_an_upgrade_to_another_format_is_rejected_and_loses_no_page(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        assert store(client, prompt(0)).stored == 8
        daemon.kill()
        ours = write_format(daemon, OTHER_FORMAT)
        assert daemon.launch().wait() == Exit.UNFIT
        assert found(client, prompt(0)) == 8, "attached engines continue"
        assert store(client, prompt(1), timeout=0.1).refused == 8
        write_format(daemon, ours)
        daemon.start()
        assert eventually(lambda: store(client, prompt(1)).stored == 8)
        assert [found(client, prompt(number)) for number in range(2)] == [8, 8], "the rejected upgrade lost no page"


def test_an_upgrade_to_another_format_with_fresh_starts_empty(daemon: RunningDaemon) -> None:
    """Attached engines change to the new segments; the pages of the old ones are no longer found."""
    with daemon.client() as client, daemon.client() as sleeper:
        assert store(client, prompt(0)).stored == 8
        with sleeper.match(prompt(0)) as match:
            daemon.kill()
            write_format(daemon, OTHER_FORMAT)
            daemon.start("--fresh")
            assert cold(daemon)
            assert eventually(lambda: store(client, prompt(1)).stored == 8)
            assert found(client, prompt(0)) == 0
            out = bytearray(8 * PAGE)
            assert sleeper.load(match, out) in (0, 8), (
                "pinned pages of the old segments are read completely or not at all"
            )
        assert eventually(lambda: found(sleeper, prompt(1)) == 8)
        assert found(sleeper, prompt(0)) == 0
        assert eventually(lambda: store(sleeper, prompt(0)).stored == 8), (
            "it stores as soon as it has mapped the new segments"
        )
        assert found(client, prompt(0)) == 8


def cold(daemon: RunningDaemon) -> bool:
    """Returns whether a new client finds no page."""
    with Client(daemon.socket) as newcomer:
        return newcomer.wait_attached(PATIENCE_S) and found(newcomer, prompt(0)) == 0
