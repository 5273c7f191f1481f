"""Starts that must be refused: an exit code, a sentence, and nothing lost."""

from __future__ import annotations

import os
import secrets
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetier.daemon import main as daemon_main
from pagetier.daemon.exits import Exit
from pagetier.daemon.host import Host
from pagetier.shm.protocol import BUILD
from running import RunningDaemon
from starting import AS_NOBODY, MAIN, fill, pagetierd, shared_memory, still_holds

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
FORMAT_AT = 8
OWN_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$0" "$@"']
FITS = "import pagetier.daemon.main as m; m.fit = lambda host, need: type('Fit', (), {'fits': True}); m.main()"


def may_unshare() -> bool:
    try:
        return subprocess.run([*OWN_SHM, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


own_shm = pytest.mark.skipif(not may_unshare(), reason="this user may not mount a /dev/shm of its own")


@pytest.fixture
def name() -> Iterator[str]:
    """A name for segments of which none may be left."""
    name = f"pagetier-test-{secrets.token_hex(6)}"
    yield name
    left = shared_memory(name)
    for file in left:
        (Path("/dev/shm") / file).unlink()
    assert left == []


@pytest.fixture
def left() -> Iterator[RunningDaemon]:
    """A daemon that died and left pages; at the end the next one must still find them."""
    with RunningDaemon() as daemon:
        fill(daemon)
        daemon.kill()
        yield daemon
        if daemon.process is not None and daemon.process.poll() is not None:
            daemon.start()
        with daemon.client() as client:
            assert still_holds(client), daemon.log.read_text()


def arguments(daemon: RunningDaemon, **other: str) -> list[str]:
    given = {"name": daemon.name, "socket": str(daemon.socket), "arena_size": "16MiB", "arena_frame_size": "64KiB"}
    return [word for key, value in (given | other).items() for word in (f"--{key.replace('_', '-')}", value)]


def refused(*arguments: str, code: str = MAIN) -> str:
    ended = pagetierd(*arguments, code=code)
    assert ended.code == Exit.REFUSED, ended.text
    assert ended.text.splitlines()[-1].startswith("pagetierd: ")
    assert "Traceback" not in ended.text
    return ended.text


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [("[arena\n", "line 1"), ("[arena]\nsiez = 1\n", 'did you mean "size"'), ("arena = 1\n", "must be a table")],
)
def test_a_configuration_that_does_not_parse(tmp_path: Path, name: str, text: str, told: str) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text(text)
    ended = pagetierd("--config", str(config), "--name", name)
    assert ended.code == Exit.USAGE
    assert str(config) in ended.text
    assert told in ended.text
    assert len(ended.text.splitlines()) == 1


def test_a_flag_that_makes_no_sense(name: str) -> None:
    ended = pagetierd("--name", name, "--arena-size", "1Gb")
    assert ended.code == Exit.USAGE
    assert "--arena-size" in ended.text


# --- the socket ------------------------------------------------------------------------------------------------------


def test_a_file_in_the_socket_s_place(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pagetier.sock"
    file.write_text("precious")
    text = refused("--name", name, "--socket", str(file), "--arena-size", "1MiB")
    assert f"{file} exists and is no socket" in text
    assert file.read_text() == "precious"


def test_a_socket_that_can_not_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert "file is no folder" in refused("--name", name, "--socket", str(tmp_path / "file/s"), "--arena-size", "1MiB")


def test_refused_for_its_socket_a_daemon_leaves_warm_pages(left: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "no socket" in refused(*arguments(left, socket=str(tmp_path / "file")))


def test_the_socket_of_a_dead_daemon_is_no_hindrance(left: RunningDaemon) -> None:
    assert left.socket.is_socket()
    left.start()


def test_two_daemons_on_one_socket(name: str) -> None:
    with RunningDaemon() as first:
        text = refused(*arguments(first, name=name))
        assert f"another daemon listens on {first.socket}" in text
        fill(first)


# --- segments that are there already ---------------------------------------------------------------------------------


def test_two_daemons_on_the_same_segments(tmp_path: Path) -> None:
    with RunningDaemon() as first, first.client() as client:
        fill(first)
        text = refused(*arguments(first, socket=str(tmp_path / "other.sock")))
        assert f"another daemon lives on segments '{first.name}'" in text
        assert refused(*arguments(first, socket=str(tmp_path / "other.sock")), "--fresh")
        assert client.attached
        assert still_holds(client)


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("arena_size", "32MiB", "512 frames"),
        ("arena_frame_size", "128KiB", "131072 bytes"),
        ("index_entries", "1000", "1000 pages"),
        ("index_namespaces", "7", "7 namespaces"),
    ],
)
def test_a_restart_with_other_sizes(left: RunningDaemon, setting: str, value: str, told: str) -> None:
    text = refused(*arguments(left, **{setting: value}))
    assert "still warm, with 256 frames of 65536 bytes, an index of 256 pages and 1024 namespaces" in text
    assert told in text
    assert "--fresh" in text


def test_fresh_drops_what_is_there() -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        daemon.kill()
        daemon.start("--fresh", "--arena-size", "32MiB")
        with daemon.client() as client:
            assert not still_holds(client)


def test_segments_of_another_format(left: RunningDaemon) -> None:
    index = Path("/dev/shm") / f"{left.name}.index"
    ours = index.read_bytes()
    write_at(index, FORMAT_AT, struct.pack("<I", 99))
    text = refused(*arguments(left))
    assert f"left in format 99 by '{BUILD}'" in text
    assert "this build reads format" in text
    write_at(index, FORMAT_AT, ours[FORMAT_AT : FORMAT_AT + 4])


def test_another_format_s_header_is_not_read_by_ours(left: RunningDaemon) -> None:
    """Whatever lies where this format says `closed`, the segments stay."""
    index = Path("/dev/shm") / f"{left.name}.index"
    ours = index.read_bytes()[:4096]
    write_at(index, FORMAT_AT, struct.pack("<I", 99))
    write_at(index, 64, b"\xff" * (4096 - 64))
    refused(*arguments(left))
    assert len(shared_memory(left.name)) == 3
    write_at(index, 0, ours)


def test_segments_that_were_cut_short(left: RunningDaemon) -> None:
    arena = Path("/dev/shm") / f"{left.name}.arena"
    size = arena.stat().st_size
    os.truncate(arena, size + 4096)
    assert "a segment is shorter or longer than the index says" in refused(*arguments(left))
    os.truncate(arena, size)


def test_a_file_of_somebody_else_s_program(name: str, tmp_path: Path) -> None:
    file = Path("/dev/shm") / f"{name}.index"
    file.write_bytes(b"not ours" * 1000)
    file.chmod(0o600)
    text = refused("--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "1MiB")
    assert "are not pagetier's" in text
    assert file.read_bytes() == b"not ours" * 1000
    file.unlink()


def test_segments_that_were_never_finished_are_made_anew(left: RunningDaemon) -> None:
    index = Path("/dev/shm") / f"{left.name}.index"
    os.truncate(index, 0)
    os.truncate(index, 1 << 20)
    left.start()
    fill(left)


def test_segments_of_which_some_are_gone_are_made_anew(left: RunningDaemon) -> None:
    (Path("/dev/shm") / f"{left.name}.arena").unlink()
    left.start()
    fill(left)


@as_root
def test_segments_of_another_user(left: RunningDaemon) -> None:
    text = refused(*arguments(left), code=AS_NOBODY)
    assert f"segments '{left.name}' belong to user root" in text
    assert "use another name" in text


@as_root
def test_root_does_not_take_up_what_another_user_made(name: str, tmp_path: Path) -> None:
    for kind in ("index", "locks", "arena"):
        file = Path("/dev/shm") / f"{name}.{kind}"
        file.touch(0o600)
        os.chown(file, 65534, 65534)
    text = refused("--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "1MiB")
    assert f"segments '{name}' belong to user nobody" in text
    assert len(shared_memory(name)) == 3
    for kind in ("index", "locks", "arena"):
        (Path("/dev/shm") / f"{name}.{kind}").unlink()


@as_root
def test_one_file_of_another_user_is_enough(name: str) -> None:
    file = Path("/dev/shm") / f"{name}.locks"
    file.touch(0o600)
    text = refused("--name", name, "--socket", "/tmp/pagetier-test.none", "--arena-size", "1MiB", code=AS_NOBODY)
    assert "belong to user root" in text
    assert shared_memory(name) == [file.name]
    file.unlink()


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
    assert "/dev/shm has 16.0 MiB left" in ended.text
    fits = ended.text.partition('arena.size = "')[2].partition('"')[0]
    with RunningDaemon(fits) as daemon:
        assert daemon.findings() == []


@own_shm
def test_memory_that_runs_out_after_all(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "64MiB"]
    ended = pagetierd(*given, code=FITS, before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "memory ran out" in ended.text
    assert "Traceback" not in ended.text


@own_shm
def test_memory_that_does_not_even_hold_the_index(name: str, tmp_path: Path) -> None:
    given = ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "64MiB", "--index-entries", "1000000"]
    ended = pagetierd(*given, code=FITS, before=OWN_SHM)
    assert ended.code == Exit.REFUSED
    assert "the memory of the index can not be had" in ended.text


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


# --- being told to stop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_at_any_moment_of_the_start_leaves_nothing_half_made(number: signal.Signals) -> None:
    for pause in (0.0, 0.2, 0.4):
        daemon = RunningDaemon("64MiB")
        daemon.launch()
        time.sleep(pause)
        daemon.signal(number)
        daemon.wait()
        if number is signal.SIGUSR1 and daemon.leftovers():
            assert len(daemon.leftovers()) == 3
            daemon.launch()
            while not daemon.socket.is_socket():
                time.sleep(0.01)
            daemon.stop()
        assert daemon.leftovers() == []
        daemon.folder.cleanup()


def write_at(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)
