"""Tests changes of a running daemon: by SIGHUP, by `pagetier resize`, and by requests to stop."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bare_engine import Engine
from child_process import ChildProcess
from disk_daemon import DiskDaemon, write_through
from eventually import PATIENCE_S, eventually
from keyed_pages import found, prompt, store
from other_users import NOBODY, as_root, output_as
from pagetier.client import Client
from pagetier.daemon.status.disk_report import Standing
from refused_starts import fill, pagetierd, still_serves
from running_daemon import RunningDaemon

FRAMES = 16


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon with an empty configuration file."""
    daemon = RunningDaemon("16MiB", "64KiB")
    daemon.config.touch()
    with daemon:
        yield daemon


@pytest.fixture
def disk() -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES, "64MiB") as daemon:
        yield daemon


def resize(disk: DiskDaemon, mib: int) -> str:
    """Resizes the disk tier, and returns the output of the command without the pages that will leave."""
    result = disk.pagetier("resize", "--disk-size", f"{mib}MiB", "--yes")
    assert result.exit_code == 0, result.output
    assert disk.until(lambda report: (report.standing, report.cap) == (Standing.OPEN, mib << 20)), disk.reported()
    return "".join(line for line in result.output.splitlines(keepends=True) if "will leave the disk" not in line)


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


def test_sighup_reloads_the_file(daemon: RunningDaemon) -> None:
    reported = daemon.reload('[log]\nlevel = "warning"\n[index]\nentries = 256\n')
    assert "log.level = warning; only a stop and a start change index.entries" in reported
    with daemon.client():
        pass
    assert "level=info name=pagetierd event=stopped" not in daemon.log.read_text()
    reported = daemon.reload('[log]\nlevel = "debug"\n[evict]\nfree = 0.4\n[index]\nentries = 256\n')
    assert "evict.free = 0.4" in reported
    assert "level=warning" in reported


def test_an_invalid_file_changes_nothing_and_its_key_is_named(daemon: RunningDaemon) -> None:
    reported = daemon.reload('[log]\nlevel = "debug"\n[evict]\nfree = "lots"\n', "event=reload_refused")
    assert f"{daemon.config}: evict.free" in reported
    assert "level=error" in reported
    assert "nested too deeply" in daemon.reload("x = " + "[" * 3000 + "]" * 3000, "event=reload_refused")
    daemon.config.unlink()
    daemon.signal(signal.SIGHUP)
    assert eventually(lambda: "cannot be read" in daemon.log.read_text())
    os.mkfifo(daemon.config)
    daemon.signal(signal.SIGHUP)
    assert eventually(lambda: "not a regular file" in daemon.log.read_text())
    fill(daemon)
    with daemon.client() as client:
        assert still_serves(client)


@as_root
def test_a_reload_changes_access(daemon: RunningDaemon) -> None:
    Path(daemon.folder.name).chmod(0o755)
    daemon.socket.chmod(0o666)
    assert "may not attach" in as_nobody(daemon)
    daemon.reload('[access]\nusers = ["nobody"]\n')
    assert as_nobody(daemon) == "attached"
    daemon.reload("")
    assert "may not attach" in as_nobody(daemon)


@as_root
def test_revoked_access_does_not_disconnect_attached_engines() -> None:
    rules = '[access]\nsocket_mode = "0666"\n'
    daemon = write_through()
    Path(daemon.folder.name).chmod(0o755)
    daemon.config.write_text(f'{rules}users = ["nobody"]\n')
    with daemon, daemon.client() as client, ChildProcess(partial(live_as_nobody, daemon.socket)) as engine:
        assert engine.ask(0) == (0, 8)
        daemon.reload(rules)
        assert "may not attach" in as_nobody(daemon)
        assert [engine.ask(0), engine.ask(1)] == [(8, 0), (0, 8)]
        daemon.push_out(client, prompt(0))
        assert engine.ask(0) == (8, 0), "from disk"


def live_as_nobody(socket: Path, pipe: Connection) -> None:
    """Loads and stores the prompts that the pipe names. Sends how many of their pages were loaded, and stored."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    client = Client(socket, timeout=PATIENCE_S)
    assert client.wait_attached(PATIENCE_S)
    while True:
        keys = prompt(pipe.recv())
        pipe.send((found(client, keys), store(client, keys).stored))


def test_observers_that_cannot_open_the_socket_are_reported(daemon: RunningDaemon) -> None:
    daemon.reload("[access]\nwatch_groups = [4711]\n", "event=socket_shut")
    assert "access.watch_groups name: set access.socket_mode" in daemon.log.read_text()
    text = '[access]\nwatch_groups = [4712]\nsocket_mode = "0666"\n'
    reported = daemon.reload(text, "event=socket_shut")
    assert 'access.watch_groups name: access.socket_mode = \\"0666\\" waits for a restart' in reported


def as_nobody(daemon: RunningDaemon) -> str:
    imports = "from pathlib import Path; from pagetier.shm.daemon_link import Link, LinkError;"
    imports += "from pagetier.shm.protocol import BUILD, Attach"
    code = "try: Link(Path(sys.argv[1]), 5).greet(Attach(BUILD, 1, 'nobody'), 5); print('attached')\n"
    code += "except LinkError as error: print(error)"
    return output_as(NOBODY, imports, code, str(daemon.socket))[1].strip()


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_larger_evict_share_frees_memory(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        disk.store_through(engine, range(FRAMES))
        assert disk.snapshot().tiers.memory.pages >= FRAMES - 1
        reported = disk.pagetier("resize", "--evict-free", "0.75")
        assert reported.exit_code == 0, reported.output
        assert reported.output == "evict.free = 0.75\n"
        assert eventually(lambda: disk.snapshot().tiers.memory.pages == FRAMES // 4)
        assert engine.places(range(FRAMES))["nowhere"] == 0


def test_the_disk_tier_shrinks_and_grows(disk: DiskDaemon) -> None:
    pages = range(60)
    with Engine(disk) as engine:
        disk.store_through(engine, pages)
        assert engine.places(pages)["nowhere"] == 0
        assert re.fullmatch(r"disk.size = 4MiB \(room for .* MiB in \d+ frames\)\n", resize(disk, 4))
        assert disk.report().restarts == 0
        left = engine.places(pages)
        assert 0 < left["disk"] < 44
        assert engine.where(59) == "memory"
        resize(disk, 64)
        assert engine.places(pages)["disk"] == left["disk"]
        disk.store_through(engine, range(100, 160))
        assert engine.places(range(100, 160))["nowhere"] == 0


def test_invalid_sizes_are_rejected(disk: DiskDaemon) -> None:
    for words, code in (
        ([], 2),
        (["--disk-size", "lots"], 2),
        (["--set", "evict.free=2"], 2),
        (["--disk-size", "0"], 1),
    ):
        assert disk.pagetier("resize", *words).exit_code == code, words
    for size in ("1", "512KiB", "9PiB"):
        impossible = disk.pagetier("resize", "--disk-size", size)
        assert (impossible.exit_code, "disk.size" in impossible.output) == (1, True), impossible.output
    assert disk.report().cap == 64 << 20
    disk.wait_open()
    assert disk.lines("disk_down") == []


def test_the_smallest_possible_disk_tier_works(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        resize(disk, 2)
        disk.store_through(engine, range(8))
        assert disk.snapshot().disk_work.written == 8
    assert disk.lines("disk_down") == []
    assert len(disk.lines("level=info name=pagetierd.disk event=disk_resized")) == 1


def test_a_disk_tier_larger_than_what_is_free_is_a_warning(disk: DiskDaemon) -> None:
    system = os.statvfs(disk.disk)
    reported = disk.pagetier("resize", "--disk-size", f"{2 * system.f_bavail * system.f_frsize >> 30}GiB")
    assert reported.exit_code == 0
    assert re.search("warning: disk.size = .* is more than the file system", reported.output)
    assert eventually(lambda: "event=disk_size" in disk.log.read_text()), disk.reported()


SHORT = "the index has room for 1,040 pages, but disk.size = 128MiB needs 2,064: "


@pytest.mark.parametrize("configured", ["64MiB", "128MiB"])
def test_a_disk_tier_too_large_for_the_index_is_reported(disk: DiskDaemon, tmp_path: Path, configured: str) -> None:
    config = tmp_path / "doctor.toml"
    arena = '[arena]\nsize = "1MiB"\nframe_size = "64KiB"\n'
    config.write_text(f'{arena}[disk]\npath = "{disk.disk}"\nsize = "{configured}"\n')
    assert re.match(rf"disk.size = 128MiB \(room for .*\)\nwarning: {SHORT}", resize(disk, 128))
    reported = disk.pagetier("doctor", "--config", str(config)).output
    assert f"warning  index          {SHORT}" in reported
    assert ("once this configuration has that disk.size" in reported) == (configured == "64MiB")
    disk.kill()
    disk.open("--disk-size", "128MiB")
    assert SHORT in disk.lines("level=warning name=pagetierd event=index_short")[0]
    disk.stop()
    disk.open("--disk-size", "128MiB")
    assert len(disk.lines("index_short")) == 1
    assert SHORT not in disk.pagetier("doctor", "--config", str(config)).output


def test_a_restart_with_another_disk_finds_the_memory_warm(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        disk.store_through(engine, range(8))
        disk.kill()
        engine.link.close()
        disk.start("--disk-size", "32MiB")
        assert engine.places(range(8)) == {"memory": 8}
        engine.attach()


# --- stop requests ---------------------------------------------------------------------------------------------------


def test_a_stop_is_a_hand_over_while_a_path_exists(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    with RunningDaemon("16MiB", "64KiB", "--keep-while", str(keep)) as daemon:
        fill(daemon)
        assert daemon.stop() == 0
        assert len(daemon.leftovers()) == 3
        daemon.start()
        with daemon.client() as client:
            assert still_serves(client)
        keep.rmdir()
        assert daemon.stop() == 0
        assert daemon.leftovers() == []


def test_memory_is_released_and_engines_follow(tmp_path: Path) -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        fill(daemon)
        lives = pagetierd("--name", daemon.name, "--release-memory")
        assert (lives.code, "not released, since a daemon uses it: stop the daemon first" in lives.text) == (4, True)
        daemon.kill()
        assert still_serves(client)
        given = pagetierd("--name", daemon.name, "--release-memory")
        assert (given.code, "the memory is released" in given.text) == (0, True)
        assert daemon.leftovers() == []
        assert eventually(lambda: f"{daemon.name}.arena" not in Path("/proc/self/maps").read_text())
        again = pagetierd("--name", daemon.name, "--release-memory")
        assert (again.code, "no memory to release" in again.text) == (0, True)


def test_check_validates_a_configuration_without_a_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pagetierd.toml"
    for size, code in (('"1GiB"', 0), ("1", 2)):
        file.write_text(f"[arena]\nsize = {size}\n")
        checked = pagetierd("--config", str(file), "--name", name, "--check")
        assert (checked.code, "Traceback" in checked.text) == (code, False), checked.text
