"""Starts that must fail: with an exit code, one sentence, and no loss of pages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventually import PATIENCE_S, eventually
from fake_host import host_files
from other_users import as_root
from pagetier.daemon import main as daemon_main
from pagetier.daemon.host.host import Host
from pagetier.shm.exit_codes import Exit
from refused_starts import AS_NOBODY, MAIN, OWN_SHM, arguments, fill, own_shm, pagetierd, refused, shared_memory
from running_daemon import RunningDaemon

FITS = "import pagetier.daemon.main as m; m.fit = lambda host, need: type('Fit', (), {'fits': True}); m.main()"


STOPPED_AND_STARTED = """
import shutil, sys
sys.path[:] = PLACES
from eventually import eventually
from running_daemon import RunningDaemon
from refused_starts import KEYS, fill
free = shutil.disk_usage("/dev/shm").free
with RunningDaemon("10MiB") as daemon, daemon.client() as client:
    fill(daemon)
    with client.match(KEYS) as match:
        print(len(match), "pages")
    assert daemon.stop() == 0
    assert eventually(lambda: shutil.disk_usage("/dev/shm").free == free), "no room for the next start"
    daemon.start()
    print("started with the match in hand:", match)
"""

REFUSED_AFTER_WORKERS = """
import os, sys
sys.path[:] = PLACES
from pagetier.daemon import main
from process_states import children_of
def open_segments(*_):
    raise main.ShmError(f"there are {len(children_of(os.getpid()))} workers")
main.open_segments = open_segments
try:
    main.main()
finally:
    assert not children_of(os.getpid())
"""

# --- configuration ---------------------------------------------------------------------------------------------------


def test_a_configuration_that_does_not_parse_is_code_2(tmp_path: Path, name: str) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text("[arena]\nsiez = 1\n")
    ended = pagetierd("--config", str(config), "--name", name)
    assert ended.code == Exit.USAGE
    assert str(config) in ended.reported and "siez" in ended.reported
    assert len(ended.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arena-size", "1Gb"], "--arena-size"),
        (["--evict-policy", "lru"], "--set evict.policy=VALUE"),
        (["--set", "evict.policy"], "is not NAME=VALUE"),
        (["--no-such-flag"], "--no-such-flag"),
        (["surplus"], "(surplus) (see pagetierd --help)"),
        (["--config", "", "--check"], "Invalid value for '--config': an empty value names no file"),
        (["--keep-while", "", "--check"], "Invalid value for '--keep-while': an empty value names no file"),
    ],
)
def test_a_usage_error_without_a_terminal_is_a_line_of_the_log_and_code_2(words: list[str], message: str) -> None:
    ended = pagetierd(*words)
    assert ended.code == Exit.USAGE
    assert "level=error name=pagetierd event=refused" in ended.text
    assert message in ended.reported
    assert len(ended.text.splitlines()) == 1


@as_root
def test_a_configuration_without_read_permission_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        config = Path(folder) / "pagetier.toml"
        config.touch(0o600)
        ended = pagetierd("--config", str(config), code=AS_NOBODY)
    assert ended.code == Exit.USAGE
    assert "event=refused" in ended.text
    assert ended.reported.startswith(f"{config}: cannot be read: Permission denied; user ")
    assert ended.reported.endswith(" must be able to read it and to enter its folders")


def test_each_mistake_is_a_log_line(tmp_path: Path) -> None:
    config = tmp_path / "pagetierd.toml"
    config.write_text('sokcet = "/x"\n[evict]\npolicy = "lfu"\n')
    ended = pagetierd("--config", str(config))
    lines = ended.text.splitlines()
    assert len(lines) == 3 and all("event=refused" in line and "code=2" in line for line in lines), ended.text
    assert "2 mistakes:" in lines[0] and "sokcet" in lines[1] and "lfu" in lines[2]
    assert "\\n" not in ended.text


# --- the socket ------------------------------------------------------------------------------------------------------


@as_root
def test_a_folder_of_another_user_says_what_to_set(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        small = ("--arena-size", "1MiB", "--name", name)
        ended = pagetierd("--socket", f"{folder}/s", *small, code=AS_NOBODY)
    assert ended.code == Exit.REFUSED
    assert "Permission denied; this user may not write to " in ended.reported
    assert ended.reported.endswith("set another socket here and in the engines (PAGETIER_SOCKET)")


def test_a_file_at_the_sockets_path_stops_the_start(tmp_path: Path, given: list[str]) -> None:
    file = tmp_path / "s"
    file.write_text("precious")
    assert f"{file} exists and is not a socket" in refused(*given)
    assert file.read_text() == "precious"
    assert "s is not a folder" in refused(*given, "--socket", str(file / "s"))


def test_a_daemon_that_fails_at_its_socket_keeps_warm_pages(left: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a socket" in refused(*arguments(left, "--socket", str(tmp_path / "file")))


def test_the_socket_of_a_dead_daemon_is_replaced(left: RunningDaemon) -> None:
    assert left.socket.is_socket()
    left.start()


def test_two_daemons_on_one_socket(name: str) -> None:
    with RunningDaemon() as first:
        text = refused(*arguments(first, "--name", name))
        assert f"another daemon listens on {first.socket}" in text
        fill(first)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_an_arena_larger_than_the_host(given: list[str]) -> None:
    text = refused(*given, "--arena-size", "900TiB", "--set=arena.frame_size=4MiB")
    assert "an arena of 900.0 TiB does not fit" in text
    assert "would fit: arena.size = " in text


@own_shm
def test_an_arena_larger_than_dev_shm(given: list[str]) -> None:
    ended = pagetierd(*given, "--arena-size", "64MiB", before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "/dev/shm has 16.0 MiB left" in ended.reported
    fits = ended.reported.partition('arena.size = "')[2].partition('"')[0]
    with RunningDaemon(fits) as daemon:
        assert daemon.findings() == []


@own_shm
@pytest.mark.parametrize(
    ("more", "words"),
    [((), "memory ran out"), (("--set", "index.entries=1000000"), "cannot allocate the memory of the index")],
    ids=["arena", "index"],
)
def test_memory_that_runs_out_stops_the_start(given: list[str], more: tuple[str, ...], words: str) -> None:
    ended = pagetierd(*given, "--arena-size", "64MiB", *more, code=FITS, before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert words in ended.text
    assert "Traceback" not in ended.text


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
    text = refused(*given, code=code, before=["unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"'])
    assert text == f"/dev/shm/{name}.index cannot be created: {why}"


def test_a_limit_on_the_size_of_files(name: str, given: list[str]) -> None:
    text = refused(*given, "--arena-size", "64MiB", before=["sh", "-c", 'ulimit -f 10000 && exec "$0" "$@"'])
    assert text == f"/dev/shm/{name}.arena cannot be created: {64 << 20} bytes: File too large (ulimit -f)"
    assert shared_memory(name) == []


@own_shm
def test_a_stop_releases_the_memory_although_an_engine_is_attached() -> None:
    ended = pagetierd(code=STOPPED_AND_STARTED.replace("PLACES", repr(sys.path)), before=OWN_SHM, most_s=4 * PATIENCE_S)
    assert ended.code == 0, ended.text
    assert "started with the match in hand: <Match 3 of 3 pages, released>" in ended.text


def test_an_arena_larger_than_the_control_group(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "sys/fs/cgroup/job/memory.max": 256 << 20,
        "sys/fs/cgroup/job/memory.current": 64 << 20,
        "proc/self/cgroup": "0::/job",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw",
    }
    host_files(tmp_path, files)
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(daemon_main, "Host", lambda: Host(tmp_path))
    ours = [variable for variable in os.environ if variable.startswith("PAGETIER_")]
    result = CliRunner(env=dict.fromkeys(ours)).invoke(daemon_main.main, [*given, "--arena-size", "512MiB"])
    assert result.exit_code == Exit.REFUSED, result.output
    assert "memory.max) has 192.0 MiB left" in result.output
    assert "would fit: arena.size = " in result.output


# --- stop requests during the start ----------------------------------------------------------------------------------


# (Python itself may lose a SIGINT that arrives during an import.)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_at_any_moment_of_the_start_leaves_nothing_behind(number: signal.Signals) -> None:
    for moment in (lambda _: True, lambda daemon: bool(daemon.leftovers()), lambda daemon: daemon.socket.exists()):
        daemon = RunningDaemon("64MiB")
        daemon.launch()
        assert eventually(partial(moment, daemon))
        daemon.signal(number)
        daemon.wait()
        if daemon.leftovers():
            assert number is signal.SIGUSR1
            assert len(daemon.leftovers()) == 3
            daemon.launch()
            assert eventually(daemon.socket.is_socket)
            daemon.stop()
        assert daemon.leftovers() == []
        daemon.folder.cleanup()


SLOW = """
import sys, threading, time
from pagetier.daemon import main as module
take = module.take
def slowly(request):
    segments = take(request)
    print("made", flush=True)
    sys.stdin.read()  # until the test has sent its signal
    return segments
module.take = slowly
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # like numpy's threads, it blocks no signal
module.main()
"""


def test_a_stop_while_segments_are_created_leaves_none(name: str, given: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, *given]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"made\n"
        assert len(shared_memory(name)) == 3
        process.terminate()
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0
    assert shared_memory(name) == [] and not (tmp_path / "s").exists()


def test_workers_are_started_before_the_segments_and_end_with_a_refused_start(given: list[str], tmp_path: Path) -> None:
    code = REFUSED_AFTER_WORKERS.replace("PLACES", repr(sys.path))
    folders = f"{tmp_path}/0,{tmp_path}/1"
    assert refused(*given, "--disk-path", folders, "--disk-size", "64MiB", code=code) == "there are 2 workers"
    assert not list(tmp_path.iterdir())
