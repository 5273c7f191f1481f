"""Tests changes of a running daemon: by SIGHUP, by `pagetier resize`, and by requests to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon, Engine
from refused_starts import fill, pagetierd, still_serves
from running_daemon import RunningDaemon, eventually

FRAMES = 16


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon with a configuration file."""
    daemon = RunningDaemon("16MiB", "64KiB")
    daemon._arguments += ["--config", str(file_of(daemon))]
    file_of(daemon).write_text("")
    with daemon:
        yield daemon


@pytest.fixture
def disk() -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES, "64MiB") as daemon:
        yield daemon


def file_of(daemon: RunningDaemon) -> Path:
    return Path(daemon.folder.name) / "pagetierd.toml"


def reloaded(daemon: RunningDaemon, text: str, event: str = "event=reloaded") -> str:
    """Returns the log line after a SIGHUP with this text in the file."""
    before = daemon.log.read_text().count(event)
    file_of(daemon).write_text(text)
    daemon.signal(signal.SIGHUP)
    assert eventually(lambda: daemon.log.read_text().count(event) > before), daemon.log.read_text()
    return [line for line in daemon.log.read_text().splitlines() if event in line][-1]


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


def test_sighup_reloads_the_file(daemon: RunningDaemon) -> None:
    reported = reloaded(daemon, '[log]\nlevel = "warning"\n[index]\nnamespaces = 7\n')
    assert "log.level = warning; only a restart changes index.namespaces" in reported
    with daemon.client():
        pass
    assert "level=info name=pagetierd event=stopped" not in daemon.log.read_text()
    reported = reloaded(daemon, '[log]\nlevel = "debug"\n[evict]\nhigh = 0.5\nlow = 0.4\n[index]\nnamespaces = 7\n')
    assert "evict.low = 0.4" in reported
    assert "level=warning" in reported


def test_an_invalid_file_changes_nothing_and_its_key_is_named(daemon: RunningDaemon) -> None:
    reported = reloaded(daemon, '[log]\nlevel = "debug"\n[evict]\nhigh = "lots"\n', "event=reload_refused")
    assert f"{file_of(daemon)}: evict.high" in reported
    assert "level=error" in reported
    assert "nested too deeply" in reloaded(daemon, "x = " + "[" * 3000 + "]" * 3000, "event=reload_refused")
    file_of(daemon).unlink()
    daemon.signal(signal.SIGHUP)
    assert eventually(lambda: "cannot be read" in daemon.log.read_text())
    os.mkfifo(file_of(daemon))
    daemon.signal(signal.SIGHUP)
    assert eventually(lambda: "not a regular file" in daemon.log.read_text())
    fill(daemon)
    with daemon.client() as client:
        assert still_serves(client)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_reload_changes_access(daemon: RunningDaemon) -> None:
    Path(daemon.folder.name).chmod(0o755)
    daemon.socket.chmod(0o666)
    assert "may not attach" in as_nobody(daemon)
    reloaded(daemon, '[access]\nusers = ["nobody"]\n')
    assert as_nobody(daemon) == "attached"
    reloaded(daemon, "")
    assert "may not attach" in as_nobody(daemon)


def test_a_file_that_is_valid_only_after_a_restart_is_rejected_with_its_key() -> None:
    daemon = RunningDaemon("16MiB", "1MiB")
    file = file_of(daemon)
    daemon._arguments += ["--config", str(file)]
    text = f'[disk]\npath = "{file.parent}/disk"\nsize = "64MiB"\nenvironments = 4\n'
    file.write_text(text)
    with daemon:
        reported = reloaded(daemon, text.replace("64MiB", "8MiB").replace("= 4", "= 1"), "event=reload_refused")
        assert f"disk.size = 8MiB ({file}: disk.size) has no room for a page in each environment" in reported
        assert "4 environments of frames of 1MiB; settings that need a restart keep their values" in reported
        assert "changed: disk.size = 128MiB" in reloaded(daemon, text.replace("64MiB", "128MiB"))


def test_observers_that_cannot_open_the_socket_are_reported(daemon: RunningDaemon) -> None:
    reloaded(daemon, "[access]\nwatch_groups = [4711]\n", "event=socket_shut")
    assert "access.watch_groups name: set access.socket_mode" in daemon.log.read_text()
    text = '[access]\nwatch_groups = [4712]\nsocket_mode = "0666"\n'
    reported = reloaded(daemon, text, "event=socket_shut")
    assert 'access.watch_groups name: access.socket_mode = \\"0666\\" waits for a restart' in reported


def as_nobody(daemon: RunningDaemon) -> str:
    code = (
        "import os, sys; from pathlib import Path; from pagetier.shm.daemon_link import Link, LinkError;"
        "from pagetier.shm.protocol import BUILD, Attach; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: Link(Path(sys.argv[1]), 5).greet(Attach(BUILD, 1, 'nobody'), 5); print('attached')\n"
        "except LinkError as error: print(error)"
    )
    return pagetierd(str(daemon.socket), code=code).text.strip()


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_larger_evict_share_frees_memory(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        engine.store_through(disk, range(FRAMES))
        assert disk.snapshot().tiers.memory.pages >= FRAMES - 1
        reported = disk.pagetier("resize", "--evict-low", "0.5", "--evict-high", "0.75")
        assert reported.exit_code == 0, reported.output
        assert reported.output == "evict.low = 0.5\nevict.high = 0.75\n"
        assert eventually(lambda: disk.snapshot().tiers.memory.pages == FRAMES // 4)
        assert engine.places(range(FRAMES))["nowhere"] == 0


def test_the_disk_tier_shrinks_and_grows(disk: DiskDaemon) -> None:
    pages = range(60)
    with Engine(disk) as engine:
        engine.store_through(disk, pages)
        assert engine.places(pages)["nowhere"] == 0
        assert disk.pagetier("resize", "--disk-size", "4MiB", "--yes").output.endswith("disk.size = 4MiB\n")
        assert disk.until(lambda report: report.standing.value == "open" and report.cap == 4 << 20), disk.reported()
        assert disk.report().restarts == 0
        left = engine.places(pages)
        assert 0 < left["disk"] < 44
        assert engine.where(59) == "memory"
        assert disk.pagetier("resize", "--disk-size", "64MiB").exit_code == 0
        assert disk.until(lambda report: report.standing.value == "open" and report.cap == 64 << 20), disk.reported()
        assert engine.places(pages)["disk"] == left["disk"]
        engine.store_through(disk, range(100, 160))
        assert engine.places(range(100, 160))["nowhere"] == 0


def test_invalid_sizes_are_rejected(disk: DiskDaemon) -> None:
    assert disk.pagetier("resize").exit_code == 2
    for option, text in (("disk-size", "lots"), ("disk-size", "-5"), ("evict-low", "nan"), ("evict-high", "2")):
        wrong = disk.pagetier("resize", f"--{option}", text)
        assert (wrong.exit_code, f"'--{option}': \"{text}\" is not a s" in wrong.output) == (2, True), wrong.output
    assert disk.report().cap == 64 << 20
    none = disk.pagetier("resize", "--disk-size", "0")
    assert (none.exit_code, "only a restart of the daemon adds or removes a disk tier" in none.output) == (1, True)
    for size in ("1", "1MiB", "9PiB"):
        impossible = disk.pagetier("resize", "--disk-size", size)
        assert (impossible.exit_code, "at least 2MiB" in impossible.output) == (1, size != "9PiB"), impossible.output
    disk.wait_open()
    assert disk.lines("disk_down") == []


def test_the_smallest_possible_disk_tier_works(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        assert disk.pagetier("resize", "--disk-size", "2MiB", "--yes").exit_code == 0
        assert disk.until(lambda report: report.standing.value == "open" and report.cap == 2 << 20), disk.reported()
        engine.store_through(disk, range(8))
        assert disk.snapshot().disk_work.written == 8
    assert disk.lines("disk_down") == []
    assert len(disk.lines("level=info name=pagetierd.disk event=disk_resized")) == 1


def test_a_disk_tier_larger_than_its_file_system_is_a_warning(disk: DiskDaemon) -> None:
    reported = disk.pagetier("resize", "--disk-size", "60TiB")
    assert reported.exit_code == 0
    assert "warning: disk.size = 60TiB is more than the file system" in reported.output
    assert eventually(lambda: "event=disk_size" in disk.log.read_text()), disk.reported()


SHORT = "the index has room for 1,040 pages, but disk.size = 128MiB needs 2,064: "


def config_of(daemon: DiskDaemon, size: str) -> str:
    text = f'[arena]\nsize = "1MiB"\nframe_size = "64KiB"\n[disk]\npath = "{daemon.disk}"\nsize = "{size}"\n'
    file_of(daemon).write_text(text)
    return str(file_of(daemon))


@pytest.mark.parametrize("configured", ["64MiB", "128MiB"])
def test_a_disk_tier_too_large_for_the_index_is_reported(disk: DiskDaemon, configured: str) -> None:
    doctor = ("doctor", "--config", config_of(disk, configured))
    reported = disk.pagetier("resize", "--disk-size", "128MiB")
    assert reported.output.startswith(f"disk.size = 128MiB\nwarning: {SHORT}")
    assert disk.until(lambda report: report.standing.value == "open" and report.cap == 128 << 20), disk.reported()
    assert f"warning  index          {SHORT}" in disk.pagetier(*doctor).output
    disk.kill()
    disk.open("--disk-size", "128MiB")
    assert SHORT in disk.lines("level=warning name=pagetierd event=index_short")[0]
    disk.stop()
    disk.open("--disk-size", "128MiB")
    assert len(disk.lines("index_short")) == 1
    assert SHORT not in disk.pagetier(*doctor).output


def test_a_reload_reports_a_disk_tier_too_large_for_the_index(tmp_path: Path) -> None:
    daemon = RunningDaemon("1MiB", "64KiB")
    daemon._arguments += ["--config", str(file_of(daemon))]
    text = f'[disk]\npath = "{tmp_path}/disk"\nsize = "SIZE"\n'
    file_of(daemon).write_text(text.replace("SIZE", "64MiB"))
    with daemon:
        assert "index" not in reloaded(daemon, text.replace("SIZE", "32MiB"))
        reported = reloaded(daemon, text.replace("SIZE", "128MiB"))
        assert "level=warning" in reported
        assert f"disk.size = 128MiB; {SHORT}" in reported


def test_a_restart_with_another_disk_finds_the_memory_warm(disk: DiskDaemon) -> None:
    with Engine(disk) as engine:
        engine.store_through(disk, range(8))
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


def test_give_back_releases_memory_and_engines_follow(tmp_path: Path) -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        fill(daemon)
        lives = pagetierd("--name", daemon.name, "--give-back")
        assert (lives.code, "a daemon lives on it" in lives.text) == (0, True)
        daemon.kill()
        assert still_serves(client)
        given = pagetierd("--name", daemon.name, "--give-back")
        assert (given.code, "the memory is given back" in given.text) == (0, True)
        assert daemon.leftovers() == []
        assert eventually(lambda: f"{daemon.name}.arena" not in Path("/proc/self/maps").read_text(), 5)
        again = pagetierd("--name", daemon.name, "--give-back")
        assert (again.code, "nothing to give back" in again.text) == (0, True)


def test_give_back_removes_segments_without_an_index(name: str) -> None:
    rest = Path("/dev/shm", f"{name}.locks")
    rest.touch()
    os.chown(rest, 65534, 65534)
    given = pagetierd("--name", name, "--give-back")
    assert (given.code, "the memory is given back" in given.text, rest.exists()) == (0, True, False)


def test_check_validates_a_configuration_without_a_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text('[arena]\nsize = "1GiB"\n')
    assert pagetierd("--config", str(file), "--name", name, "--check").code == 0
    file.write_text("[arena]\nsize = 1\n")
    refused = pagetierd("--config", str(file), "--name", name, "--check")
    assert (refused.code, "arena.size" in refused.text) == (2, True)
    file.write_text("[arena]\nsize = " + "9" * 5000)
    refused = pagetierd("--config", str(file), "--name", name, "--check")
    assert (refused.code, "Traceback" in refused.text) == (2, False)
    assert pagetierd("--config", str(file), "--name", name, "--give-back").code == 0
