"""Tests an arena whose memory is allocated on use, on a host whose /dev/shm fills up: no process is killed by it."""

from __future__ import annotations

import logging
import sys

import pytest

from eventually import PATIENCE_S
from pagetier.daemon.common.log_throttle import MINUTE_S
from pagetier.daemon.index.shortage import Shortage
from refused_starts import Ended, own_shm, pagetierd, with_shm
from virtual_time_loop import OwnTimeLoop

# Of 16 MiB of /dev/shm, an arena of 10 MiB may have about 4.
CROWDED = """
import os, sys
sys.path[:] = PLACES
import numpy as np
from eventually import PATIENCE_S, eventually
from running_daemon import RunningDaemon, namespace

PAGE, MIB = 64 << 10, 1 << 20

def prompt(number):
    return namespace(salt=str(number)).keys(range(16 * 32))

def pages(number):
    return np.full((32, PAGE), number + 1, np.uint8)

def found(client, number):
    into = np.zeros((32, PAGE), np.uint8)
    with client.match(prompt(number)) as match:
        loaded = client.load(match, into, timeout=PATIENCE_S)
    assert (into[:loaded] == number + 1).all() and not into[loaded:].any()
    return loaded

def crowd(left):
    with open("/dev/shm/crowd", "ab") as file:
        at = os.statvfs("/dev/shm")
        os.posix_fallocate(file.fileno(), file.tell(), at.f_bavail * at.f_frsize - left)
"""
STORES = """
with RunningDaemon("10MiB", "64KiB", "--set", "arena.prefault=lazy") as daemon, daemon.client() as client:
    crowd(4 * MIB)
    results = [client.store(prompt(number), pages(number)) for number in range(8)]
    assert [result.stored for result in results] == [32] * 8, "older pages released their memory"
    print("found", [found(client, number) for number in (5, 6, 7)])
    held = [client.match(prompt(number)) for number in (6, 7)]
    print("while all of it is pinned:", client.store(prompt(8), pages(8)))
    assert eventually(lambda: "event=arena_short" in daemon.log.read_text())
    daemon.kill()
    daemon.start()
    assert client.wait_attached(PATIENCE_S)
    print("adopted:", client.store(prompt(8), pages(8)), found(client, 7))
    os.unlink("/dev/shm/crowd")
    print("with room again:", client.store(prompt(8), pages(8)).stored, found(client, 8))
    for match in held:
        match.release()
"""
READS = """
import tempfile
DISK = ("--disk-size", "64MiB", "--set", "disk.write=through")
with (
    tempfile.TemporaryDirectory() as folder,
    RunningDaemon("10MiB", "64KiB", "--set", "arena.prefault=lazy", "--disk-path", folder, *DISK) as daemon,
    daemon.client() as client,
):
    daemon.wait_disk_open()
    assert [client.store(prompt(number), pages(number)).stored for number in range(4)] == [32] * 4
    daemon.until_written()
    assert daemon.stop() == 0
    crowd(14 * MIB)
    daemon.start()
    assert client.wait_attached(PATIENCE_S)
    daemon.wait_disk_open()
    crowd(3 * MIB)
    print("read", [found(client, number) for number in (0, 1, 2, 3)])
    assert "SIGBUS" not in daemon.log.read_text()
"""


def in_a_crowd(script: str, huge: str) -> Ended:
    code = (CROWDED + script).replace("PLACES", repr(sys.path))
    return pagetierd(code=code, before=with_shm("size=16m", f"huge={huge}"), most_s=8 * PATIENCE_S)


class Arena:
    """A fake owner of the index."""

    lacks_memory = False


@own_shm
@pytest.mark.parametrize("huge", ["never", "advise"])
def test_without_more_memory_stores_are_rejected_and_engines_live(huge: str) -> None:
    ended = in_a_crowd(STORES, huge)
    assert ended.code == 0, (ended.code, ended.text)
    assert "found [0, 32, 32]" in ended.text
    assert "pinned: <StoreResult 0 stored, 0 present, 0 pending, 32 refused: there is no memory for" in ended.text
    assert "adopted: <StoreResult 0 stored" in ended.text and "with room again: 32 32" in ended.text


@own_shm
@pytest.mark.parametrize("huge", ["never", "advise"])
def test_without_more_memory_reads_from_disk_kill_no_worker(huge: str) -> None:
    ended = in_a_crowd(READS, huge)
    assert ended.code == 0, (ended.code, ended.text)
    assert "read [32, 32, 32, 32]" in ended.text


def test_a_shortage_is_logged_when_it_begins_at_most_once_a_minute(
    caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop
) -> None:
    arena = Arena()
    shortage = Shortage(arena)  # type: ignore[arg-type]
    counts = []
    with caplog.at_level(logging.INFO):
        for lacks, later in ((False, 0), (True, 0), (True, MINUTE_S), (False, 0), (True, 0), (False, 0), (True, 1)):
            arena.lacks_memory = lacks
            virtual_time.passes(later)
            shortage.check()
            counts.append(len(caplog.messages))
    assert counts == [0, 1, 1, 1, 2, 2, 2]
