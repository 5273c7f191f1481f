"""Tests what a daemon does with the warm segments and the disk tier of the last release, as that build left them.

`tests/harness/recorded_leftovers.py` recorded them with the last commit of that build.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import PATIENCE_S
from keyed_pages import found, in_memory, prompt, store
from named_segments import SHM
from pagetier.shm._core import FORMAT
from pagetier.shm.exit_codes import Exit
from pagetier.tiers.disk.file_format import FORMAT as DISK_FORMAT
from pagetier.tiers.disk.recovery import read_state
from recorded_leftovers import FRAME, KEYS, daemon_with_disk, place_segments, unpack
from refused_starts import pagetierd, shared_memory
from running_daemon import RunningDaemon

MORE = prompt(4, pages=5)
RELEASED = 3  # the format of its segments
LAST = Path(__file__).parent / "recorded" / f"format_{RELEASED}.tar.xz"


@pytest.fixture
def disk() -> Iterator[Path]:
    """The disk tier of the last build, beside its segments."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        unpack(LAST, Path(folder))
        yield Path(folder) / "disk"


def contents(daemon: RunningDaemon) -> dict[str, bytes]:
    return {name: (SHM / name).read_bytes() for name in shared_memory(daemon.name)}


def test_a_restart_is_refused_with_one_line_and_changes_nothing(disk: Path) -> None:
    daemon = daemon_with_disk(disk)
    place_segments(disk.parent, daemon.name)
    before = contents(daemon)
    daemon.launch()
    assert daemon.wait() == Exit.UNFIT
    (line,) = daemon.log.read_text().splitlines()
    assert f"left in format {RELEASED} by" in line and f"this build reads format {FORMAT}" in line
    assert len(before) == 3 and contents(daemon) == before
    assert pagetierd("--name", daemon.name, "--release-memory").code == Exit.OK
    assert not contents(daemon)
    daemon.folder.cleanup()


def test_after_a_stop_the_memory_is_dropped_with_one_line(disk: Path) -> None:
    daemon = daemon_with_disk(disk, "--keep-while", str(disk.with_name("absent")))
    place_segments(disk.parent, daemon.name)
    with daemon:
        (line,) = daemon.lines("event=leftovers_dropped")
        assert f"left in format {RELEASED} by" in line
        daemon.wait_disk_open()
        assert len(daemon.lines("format")) == 2, "one line for the memory, one for the disk"


def test_the_disk_is_read_as_it_is_and_written_in_this_format(disk: Path) -> None:
    state = read_state(disk)
    assert state is not None and state.format == DISK_FORMAT - 1
    with daemon_with_disk(disk) as daemon:
        for number, how in enumerate((f"as it was left, in format {DISK_FORMAT - 1};", "as it was left;")):
            daemon.wait_disk_open()
            assert how in daemon.lines("event=disk_open")[-1]
            with daemon.client() as client:
                assert in_memory(client, KEYS) == 0 and found(client, KEYS, FRAME, PATIENCE_S) == len(KEYS)
                assert store(client, KEYS, FRAME).present == len(KEYS)
                assert number == 0 or found(client, MORE, FRAME, PATIENCE_S) == len(MORE), "records of both formats"
                store(client, MORE, FRAME)
                daemon.until_written()
            assert (state := read_state(disk)) is not None and state.format == DISK_FORMAT
            daemon.stop()
            daemon.start()
