"""Starts that must fail: with an exit code, one sentence, and no loss of pages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetier.daemon import main as daemon_main
from pagetier.daemon.host.host import Host
from pagetier.shm.exit_codes import Exit
from refused_starts import AS_NOBODY, MAIN, OWN_SHM, arguments, fill, own_shm, pagetierd, refused, shared_memory
from running_daemon import START_S, RunningDaemon

FITS = "import pagetier.daemon.main as m; m.fit = lambda host, need: type('Fit', (), {'fits': True}); m.main()"


STOPPED_AND_STARTED = """
import shutil, sys
sys.path[:] = PLACES
from running_daemon import RunningDaemon, eventually
from refused_starts import fill, keys
free = shutil.disk_usage("/dev/shm").free
with RunningDaemon("10MiB") as daemon, daemon.client() as client:
    fill(daemon)
    with client.match(keys()) as match:
        print(len(match), "pages")
    assert daemon.stop() == 0
    assert eventually(lambda: shutil.disk_usage("/dev/shm").free == free), "no room for the next start"
    daemon.start()
    print("started with the match in hand:", match)
"""


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [("[arena\n", "line 1"), ("[arena]\nsiez = 1\n", 'did you mean "size"'), ("arena = 1\n", "must be a table")],
)
def test_a_configuration_that_does_not_parse_is_code_2(tmp_path: Path, name: str, text: str, message: str) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text(text)
    ended = pagetierd("--config", str(config), "--name", name)
    assert ended.code == Exit.USAGE
    assert str(config) in ended.reported
    assert message in ended.reported
    assert len(ended.text.splitlines()) == 1


def test_an_invalid_flag_is_code_2(name: str) -> None:
    ended = pagetierd("--name", name, "--arena-size", "1Gb")
    assert ended.code == Exit.USAGE
    assert "--arena-size" in ended.text


@pytest.mark.parametrize("words", [("--no-such-flag",), ("surplus",)])
def test_a_usage_error_without_a_terminal_is_a_line_of_the_log(words: tuple[str, ...]) -> None:
    ended = pagetierd(*words)
    assert ended.code == Exit.USAGE
    assert "level=error name=pagetierd event=refused" in ended.text
    assert len(ended.text.splitlines()) == 1


@pytest.mark.parametrize("option", ["--config", "--keep-while"])
def test_an_empty_path_is_a_usage_error(option: str) -> None:
    ended = pagetierd(option, "", "--check")
    assert (ended.code, f"Invalid value for '{option}': an empty value names no file" in ended.reported) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_configuration_without_read_permission_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        config = Path(folder) / "pagetier.toml"
        config.touch(0o600)
        ended = pagetierd("--config", str(config), code=AS_NOBODY)
    assert ended.code == Exit.USAGE
    assert "event=refused" in ended.text
    assert ended.reported == f"{config}: cannot be read: Permission denied"


# --- the socket ------------------------------------------------------------------------------------------------------


def test_a_file_at_the_sockets_path_stops_the_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pagetier.sock"
    file.write_text("precious")
    text = refused("--name", name, "--socket", str(file), "--arena-size", "1MiB")
    assert f"{file} exists and is not a socket" in text
    assert file.read_text() == "precious"


def test_a_socket_that_cannot_be_created_stops_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert "file is not a folder" in refused(
        "--name", name, "--socket", str(tmp_path / "file/s"), "--arena-size", "1MiB"
    )


def test_a_daemon_that_fails_at_its_socket_keeps_warm_pages(left: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a socket" in refused(*arguments(left, socket=str(tmp_path / "file")))


def test_the_socket_of_a_dead_daemon_is_replaced(left: RunningDaemon) -> None:
    assert left.socket.is_socket()
    left.start()


def test_two_daemons_on_one_socket(name: str) -> None:
    with RunningDaemon() as first:
        text = refused(*arguments(first, name=name))
        assert f"another daemon listens on {first.socket}" in text
        fill(first)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_an_arena_larger_than_the_host(name: str, tmp_path: Path) -> None:
    text = refused("--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "900TiB", "--arena-frame-size=4MiB")
    assert "an arena of 900.0 TiB does not fit" in text
    assert "would fit: arena.size = " in text


@own_shm
def test_an_arena_larger_than_dev_shm(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size"]
    ended = pagetierd(*given, "64MiB", before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "/dev/shm has 16.0 MiB left" in ended.reported
    fits = ended.reported.partition('arena.size = "')[2].partition('"')[0]
    with RunningDaemon(fits) as daemon:
        assert daemon.findings() == []


@own_shm
def test_memory_that_runs_out_while_populating_stops_the_start(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "64MiB"]
    ended = pagetierd(*given, code=FITS, before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "memory ran out" in ended.text
    assert "Traceback" not in ended.text


@own_shm
def test_memory_too_small_for_the_index_stops_the_start(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "64MiB", "--index-entries", "1000000"]
    ended = pagetierd(*given, code=FITS, before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "cannot allocate the memory of the index" in ended.text


IN_OTHER_SHM = ["unshare", "--mount", "sh", "-c"]


@own_shm
@pytest.mark.parametrize(
    ("mount", "code", "why"),
    [
        ("mount -t tmpfs tmpfs /dev", MAIN, "there is no /dev/shm"),
        ("mount -t tmpfs -o ro tmpfs /dev/shm", MAIN, "Read-only file system"),
        ("mount -t tmpfs -o mode=755 tmpfs /dev/shm", AS_NOBODY, "this user may not write there"),
    ],
)
def test_an_unusable_dev_shm_stops_the_start(mount: str, code: str, why: str, name: str) -> None:
    given = ["--name", name, "--socket", "/tmp/pagetier-test.none", "--arena-size", "1MiB"]
    text = refused(*given, code=code, before=[*IN_OTHER_SHM, f'{mount} && exec "$0" "$@"'])
    assert text == f"/dev/shm/{name}.index cannot be created: {why}"


def test_a_limit_on_the_size_of_files(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "64MiB"]
    text = refused(*given, before=["sh", "-c", 'ulimit -f 10000 && exec "$0" "$@"'])
    assert text == f"/dev/shm/{name}.arena cannot be created: {64 << 20} bytes: File too large (ulimit -f)"
    assert shared_memory(name) == []


@own_shm
def test_a_stop_releases_the_memory_although_an_engine_is_attached() -> None:
    ended = pagetierd(code=STOPPED_AND_STARTED.replace("PLACES", repr(sys.path)), before=OWN_SHM, most_s=4 * START_S)
    assert ended.code == 0, ended.text
    assert "started with the match in hand: <Match 3 of 3 pages, released>" in ended.text


def test_an_arena_larger_than_the_control_group(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    for file, number in {"memory.max": 256 << 20, "memory.current": 64 << 20}.items():
        (group / file).write_text(f"{number}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(daemon_main, "Host", lambda: Host(tmp_path))
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "512MiB"]
    result = CliRunner(env=dict.fromkeys(filter(is_ours, os.environ))).invoke(daemon_main.main, given)
    assert result.exit_code == Exit.REFUSED, result.output
    assert "memory.max) has 192.0 MiB left" in result.output
    assert "would fit: arena.size = " in result.output


def is_ours(variable: str) -> bool:
    return variable.startswith("PAGETIER_")


# --- stop requests during the start ----------------------------------------------------------------------------------


# (Python itself may lose a SIGINT that arrives during an import.)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_at_any_moment_of_the_start_leaves_nothing_behind(number: signal.Signals) -> None:
    for pause in (0.0, 0.2, 0.4):
        daemon = RunningDaemon("64MiB")
        daemon.launch()
        time.sleep(pause)
        daemon.signal(number)
        daemon.wait()
        if daemon.leftovers():
            assert number is signal.SIGUSR1
            assert len(daemon.leftovers()) == 3
            daemon.launch()
            while not daemon.socket.is_socket():
                time.sleep(0.01)
            daemon.stop()
        assert daemon.leftovers() == []
        daemon.folder.cleanup()


SLOW = """
import threading, time
from pagetier.daemon import main as module
take = module.take
def slowly(request):
    segments = take(request)
    print("made", flush=True)
    time.sleep(0.5)
    return segments
module.take = slowly
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # like numpy's threads, it blocks no signal
module.main()
"""


def test_a_stop_while_segments_are_created_leaves_none() -> None:
    daemon = RunningDaemon("1MiB")
    where = ["--name", daemon.name, "--socket", str(daemon.socket), "--arena-size", "1MiB"]
    command = [sys.executable, "-c", SLOW, *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"made\n"
        assert len(daemon.leftovers()) == 3
        process.terminate()
    assert process.returncode == 0
    assert daemon.leftovers() == [] and not daemon.socket.exists()
    daemon.folder.cleanup()
