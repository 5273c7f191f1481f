"""Tests segments that exist when a daemon starts: they are adopted, or rejected and left unchanged."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eventually import eventually
from file_changes import write_at
from keyed_pages import store
from named_segments import KINDS, SHM
from other_users import NOBODY, as_root
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import BUILD
from refused_starts import (
    AS_NOBODY,
    KEYS,
    PAGES,
    arguments,
    fill,
    pagetierd,
    refused,
    shared_memory,
    still_serves,
)
from running_daemon import RunningDaemon

FORMAT_AT = 8
ANOTHER = "use another --name and --socket, and give engines that socket (PAGETIER_SOCKET)"


def of_nobody(name: str, *kinds: str) -> None:
    """Makes empty segments that belong to another user."""
    for kind in kinds:
        file = SHM / f"{name}.{kind}"
        file.touch(0o600)
        os.chown(file, NOBODY, NOBODY)


def test_two_daemons_cannot_use_the_same_segments(tmp_path: Path) -> None:
    with RunningDaemon() as first, first.client() as client:
        fill(first)
        text = refused(*arguments(first, "--socket", str(tmp_path / "other.sock")))
        which = f"; the other daemon is process {first.pid} and listens on {first.socket}"
        assert text == f"another daemon uses segments '{first.name}': stop it, or {ANOTHER}{which}"
        assert refused(*arguments(first, "--socket", str(tmp_path / "other.sock")), "--fresh")
        assert client.attached
        assert still_serves(client)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("arena.size", "32MiB", "512 frames"),
        ("arena.frame_size", "128KiB", "131072 bytes"),
        ("index.entries", "1000", "1000 pages"),
    ],
)
def test_a_restart_with_other_sizes_is_refused(left: RunningDaemon, setting: str, value: str, reason: str) -> None:
    text = refused(*arguments(left, "--set", f"{setting}={value}"))
    assert "contain pages and have 256 frames of 65536 bytes, an index of 256 pages and 1024 namespaces" in text
    assert reason in text
    assert "--fresh" in text


def test_a_restart_with_other_sizes_replaces_empty_segments() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        daemon.kill()
        daemon.start("--arena-size", "32MiB")
        assert daemon.log.read_text().count("event=leftovers_dropped") == 1
        assert daemon.header().arena_bytes == 32 << 20
        assert eventually(lambda: store(client, KEYS).stored == PAGES), "an engine attaches to the new segments"
        assert still_serves(client)


def test_fresh_drops_what_is_there() -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        daemon.kill()
        daemon.start("--fresh", "--arena-size", "32MiB")
        with daemon.client() as client:
            assert not still_serves(client)


def test_segments_of_another_format(left: RunningDaemon) -> None:
    index = SHM / f"{left.name}.index"
    ours = index.read_bytes()
    write_at(index, FORMAT_AT, struct.pack("<I", 99))
    text = refused(*arguments(left))
    assert f"left in format 99 by '{BUILD}'" in text
    assert "this build reads format" in text
    write_at(index, FORMAT_AT, ours[FORMAT_AT : FORMAT_AT + 4])


def test_another_format_s_header_is_not_read_by_ours(left: RunningDaemon) -> None:
    """The segments stay, whatever value is at the offset that this format calls `closed`."""
    index = SHM / f"{left.name}.index"
    ours = index.read_bytes()[:4096]
    write_at(index, FORMAT_AT, struct.pack("<I", 99))
    write_at(index, 64, b"\xff" * (4096 - 64))
    refused(*arguments(left))
    assert len(shared_memory(left.name)) == 3
    write_at(index, 0, ours)


def test_truncated_segments_are_rejected(left: RunningDaemon) -> None:
    arena = SHM / f"{left.name}.arena"
    size = arena.stat().st_size
    os.truncate(arena, size + 4096)
    assert "a segment is shorter or longer than the index says" in refused(*arguments(left))
    os.truncate(arena, size)


def test_a_file_of_another_program_is_rejected(name: str, given: list[str]) -> None:
    file = SHM / f"{name}.index"
    file.write_bytes(b"not ours" * 1000)
    file.chmod(0o600)
    text = refused(*given)
    assert "are not pagetier's" in text
    assert file.read_bytes() == b"not ours" * 1000
    file.unlink()


def test_unfinished_segments_are_created_again(left: RunningDaemon) -> None:
    index = SHM / f"{left.name}.index"
    os.truncate(index, 0)
    os.truncate(index, 1 << 20)
    left.start()
    fill(left)


def test_incomplete_segments_are_created_again(left: RunningDaemon) -> None:
    (SHM / f"{left.name}.arena").unlink()
    left.start()
    fill(left)


@as_root
def test_segments_of_another_user(left: RunningDaemon) -> None:
    text = refused(*arguments(left), code=AS_NOBODY)
    assert f"/dev/shm/{left.name}.index belongs to user root: if a daemon runs there, use it (access.users)" in text
    assert f"or {ANOTHER}; if none runs, have root run " in text
    assert f"`pagetierd --name {left.name} --release-memory`, which releases nothing that a daemon uses" in text
    assert "remove" not in text, "nobody is led to remove segments that a daemon may use"


@as_root
def test_root_does_not_adopt_segments_of_another_user(name: str, given: list[str]) -> None:
    of_nobody(name, *KINDS)
    text = refused(*given)
    assert f"/dev/shm/{name}.index belongs to user nobody" in text
    assert len(shared_memory(name)) == 3
    for file in shared_memory(name):
        (SHM / file).unlink()


@as_root
def test_one_file_of_another_user_is_enough(name: str) -> None:
    file = SHM / f"{name}.locks"
    file.touch(0o600)
    text = refused("--name", name, "--socket", "/tmp/pagetier-test.none", "--arena-size", "1MiB", code=AS_NOBODY)
    assert "belongs to user root" in text
    assert shared_memory(name) == [file.name]
    file.unlink()


@as_root
@pytest.mark.parametrize(
    "make", [Path.symlink_to, lambda file, _: file.mkdir(), lambda file, _: os.mkfifo(file, 0o666)]
)
def test_other_file_types_of_another_user_are_rejected(
    name: str, given: list[str], tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    file = SHM / f"{name}.index"
    make(file, tmp_path / "victim")
    os.chown(file, NOBODY, NOBODY, follow_symlinks=False)
    try:
        text = refused(*given)
        assert f"{file} belongs to user nobody: if a daemon runs there, use it" in text
        assert not (tmp_path / "victim").exists()
    finally:
        file.rmdir() if file.is_dir() else file.unlink()


@as_root
def test_an_arena_of_another_user_is_not_adopted(left: RunningDaemon) -> None:
    """The user who made it could read and write each page in it."""
    arena = SHM / f"{left.name}.arena"
    ours = arena.with_suffix(".ours")
    arena.rename(ours)
    shutil.copy(ours, arena)
    arena.chmod(0o666)
    os.chown(arena, NOBODY, NOBODY)
    assert f"{arena} belongs to user nobody" in refused(*arguments(left))
    ours.rename(arena)


def test_after_a_stop_of_the_service_unusable_segments_are_dropped(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    with RunningDaemon("16MiB", "64KiB", "--keep-while", str(keep)) as daemon:
        fill(daemon)
        daemon.kill()
        other = [*arguments(daemon, "--arena-size", "32MiB"), "--keep-while", str(keep)]
        ended = pagetierd(*other)
        assert ended.code == Exit.UNFIT
        assert "contain pages" in ended.reported and "`systemctl stop` and then `systemctl start`" in ended.reported
        assert len(daemon.leftovers()) == 3
        keep.rmdir()
        daemon.start("--arena-size", "32MiB")
        assert "event=leftovers_dropped" in daemon.log.read_text()
        assert daemon.header().arena_bytes == 32 << 20


def test_after_a_stop_usable_segments_are_adopted(tmp_path: Path) -> None:
    with RunningDaemon("16MiB", "64KiB", "--keep-while", str(tmp_path / "none")) as daemon:
        fill(daemon)
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert still_serves(client)


@as_root
@pytest.mark.parametrize("kinds", [KINDS, ["locks"]], ids=["all", "without an index"])
def test_root_releases_segments_of_any_user(name: str, kinds: Sequence[str]) -> None:
    of_nobody(name, *kinds)
    given = pagetierd("--name", name, "--release-memory")
    assert (given.code, shared_memory(name)) == (Exit.OK, []), given.text
    assert "the memory is released" in given.text


@pytest.mark.parametrize("rest", ["[arena]\nsiez = 1\n", "[arena\n", "[arena]\nsize = " + "9" * 5000])
def test_memory_is_released_regardless_of_the_configuration(tmp_path: Path, rest: str) -> None:
    config = tmp_path / "pagetierd.toml"
    with RunningDaemon() as daemon:
        config.write_text(f'name = "{daemon.name}"\n{rest}')
        daemon.kill()
        given = pagetierd("--config", str(config), "--release-memory")
        assert (given.code, daemon.leftovers()) == (Exit.OK, []), given.text
        daemon.start()
