"""Tests what `pagetierd --check` says of a valid configuration on this host."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
import tempfile
from pathlib import Path

import pytest

import running_daemon
from daemon_constants import PROGRAM
from eventually import eventually
from fake_host import host_files
from free_ports import free_ports
from other_users import as_root
from pagetier.daemon.config.loader import ConfigError, load
from pagetier.daemon.config_check import check_config
from pagetier.daemon.host import arena_fit
from pagetier.daemon.host.host import Host, SharedMemory
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import FORMAT, HEAD_LAYOUT, ShmError
from pagetier.shm.exit_codes import Exit
from refused_starts import AS_NOBODY, arguments, fill, pagetierd
from running_daemon import RunningDaemon

# Imported before the process becomes another user, which may be unable to read them.
_LATE = (
    "from pagetier.daemon import disk_check, sockets_check, unreadable_pages;"
    " from pagetier.tiers.disk import file_system, other_settings, recovery, store_folder"
)
CHECK_AS_NOBODY = f"{_LATE}; {AS_NOBODY}"


def warnings(flags: dict[str, str]) -> str:
    """Returns the warnings about a configuration that these flags make."""
    lines = check_config(load(None, {}, {"arena.size": "8MiB", **flags}), Host())
    return "\n".join(line for line in lines if line.startswith("warning"))


def test_a_configuration_that_fits_has_no_warning(tmp_path: Path) -> None:
    given = {"disk.path": str(tmp_path / "new" / "disk"), "disk.size": "64MiB", "socket": str(tmp_path / "socket")}
    assert warnings(given) == ""


def test_a_folder_of_the_socket_that_the_start_creates_is_named(tmp_path: Path) -> None:
    socket, where = f"socket: {tmp_path}/new/s", ", whose folder does not exist yet: the start creates it"
    config = load(None, {}, {"arena.size": "8MiB", "socket": f"{tmp_path}/new/s"})
    assert socket + where in list(check_config(config, Host()))
    (tmp_path / "new").mkdir()
    assert socket in list(check_config(config, Host()))


def test_shared_memory_that_cannot_be_written_is_what_the_start_would_fail_by(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 1 << 40
    unwritable = SharedMemory(path=Path("/dev/shm"), kind="tmpfs", size=free, free=free, writable=False)
    monkeypatch.setattr(Host, "shared_memory", lambda host: unwritable)
    with pytest.raises(ShmError, match="/dev/shm is missing or read-only, or this user may not write there"):
        warnings({})


@pytest.mark.parametrize("folder", ["/proc/x", "/sys/x", "FILE/x"])
def test_a_disk_folder_that_cannot_be_created_is_a_warning(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    given = {"disk.path": folder.replace("FILE", str(tmp_path / "file")), "disk.size": "64MiB"}
    assert "set another disk.path" in warnings({"socket": str(tmp_path / "socket"), **given})


def test_a_disk_tier_larger_than_what_is_free_is_a_warning(tmp_path: Path) -> None:
    """What the tier has already counts as free for it."""
    given = {"disk.path": str(tmp_path / "disk"), "disk.size": "64MiB", "socket": str(tmp_path / "socket")}
    config = load(None, {}, {"arena.size": "8MiB", **given})
    free = (16 << 20) // 4096
    full = Host(statvfs=lambda _: os.statvfs_result((4096, 4096, 1 << 30, free, free, 0, 0, 0, 0, 255)))
    expected = f"warning: on this host disk.size = 64MiB is more than the file system of {tmp_path}/disk has for it"
    assert any(line.startswith(expected) and "16.0 MiB free" in line for line in check_config(config, full))
    (tmp_path / "disk" / "0").mkdir(parents=True)
    with (tmp_path / "disk" / "0" / "frames.0").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 49 << 20)
    assert not any("disk.size" in line for line in check_config(config, full))


def test_an_arena_that_leaves_engines_too_little_is_a_warning_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningDaemon() as daemon:
        assert _warnings_of_arena(daemon) == [0, 0, 0]
    monkeypatch.setattr(arena_fit, "_MOST_OF_HOST", 0.0)
    code = "from pagetier.daemon.host import arena_fit; arena_fit._MOST_OF_HOST = 0.0; "
    monkeypatch.setattr(running_daemon, "PROGRAM", code + PROGRAM)
    with RunningDaemon() as daemon:
        assert _warnings_of_arena(daemon) == [1, 1, 1]
        assert "warning  arena " in daemon.pagetier("doctor").output


def _warnings_of_arena(daemon: RunningDaemon) -> list[int]:
    """Returns how often the log, the check and the doctor say that the arena takes too much of the host."""
    log = "\n".join(daemon.lines("level=warning name=pagetierd event=arena_large"))
    return [text.count("(docs/sizing.md)") for text in (log, warnings({}), daemon.pagetier("doctor").output)]


def test_a_missing_token_file_that_nothing_reads_is_a_warning(tmp_path: Path) -> None:
    found = warnings({"http.token_file": str(tmp_path / "none")})
    assert "http.token_file" in found and str(tmp_path / "none") in found


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["arena.size=97TiB", "arena.frame_size=4MiB"], Exit.REFUSED, 'would fit: arena.size = "'),
        (["http.listen=PORT", "http.token_file=DIR/none"], Exit.USAGE, "http.token_file: DIR/none"),
        (["http.listen=PORT", "http.token_file=DIR/open"], Exit.USAGE, "chmod 600 it"),
        (["metrics.listen=PORT", "http.token_file=DIR/none"], Exit.USAGE, "http.token_file: DIR/none"),
        (["socket=/proc/x/s"], Exit.REFUSED, "no files can be created: set another socket"),
        (["socket=DIR/open/s"], Exit.REFUSED, "DIR/open is not a folder: set another socket"),
        (["metrics.listen=/sys/x/s"], Exit.REFUSED, "no files can be created: set another metrics.listen"),
        (["http.listen=DIR/open/s"], Exit.REFUSED, "DIR/open is not a folder: set another http.listen"),
    ],
)
def test_a_check_fails_as_the_start_would(
    settings: list[str], code: Exit, words: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "open").write_text("a" * 32)
    (tmp_path / "open").chmod(0o644)
    (port,) = free_ports(1)
    own = [f"name={name}", "arena.size=8MiB", f"socket={tmp_path}/s"]
    given = sets(*own, *(each.replace("DIR", str(tmp_path)).replace("PORT", str(port)) for each in settings))
    checked, started = pagetierd(*given, "--check"), pagetierd(*given)
    assert (checked.code, started.code) == (code, code), checked.text + started.text
    assert "event=stopped" not in started.text, "it has never run"
    assert words.replace("DIR", str(tmp_path)) in checked.reported
    assert without_numbers(checked.reported) == without_numbers(started.reported)


def test_a_check_names_all_that_a_start_would_fail_by(tmp_path: Path, name: str) -> None:
    flags = {"name": name, "arena.size": "97TiB", "arena.frame_size": "4MiB", "socket": "/proc/x/s"}
    flags |= {"metrics.listen": "/sys/x/s", "http.listen": "127.0.0.1:1", "http.token_file": f"{tmp_path}/none"}
    with pytest.raises(ShmError) as raised:
        list(check_config(load(None, {}, {**flags, "disk.path": "/proc/d", "disk.size": "64MiB"}), Host()))
    first, *mistakes = str(raised.value).splitlines()
    assert first == f"{len(mistakes)} mistakes:"
    named = ("/proc/x lies in", f"{tmp_path}/none", "/sys/x lies in", 'would fit: arena.size = "')
    assert all(any(each in line for line in mistakes) for each in named), mistakes


def test_a_warning_beside_a_mistake_is_no_error(tmp_path: Path, name: str) -> None:
    given = (f"name={name}", "arena.frame_size=4MiB", f"socket={tmp_path}/s", "disk.path=/proc/d", "disk.size=64MiB")
    alone, beside = (pagetierd("--check", *sets(*given, f"arena.size={size}")) for size in ("64MiB", "97TiB"))
    (warning,) = re.findall("^warning: (.*)", alone.text, re.MULTILINE)
    logged, refused = beside.text.splitlines()
    assert "level=warning name=pagetierd event=check_warning msg=" in logged and warning in logged
    assert "level=error name=pagetierd event=refused " in refused and "an arena of 97.0 TiB" in beside.reported


def test_a_warning_beside_a_mistake_is_a_sentence_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    flags = {"arena.size": "97TiB", "arena.frame_size": "4MiB", "socket": f"{tmp_path}/s"}
    with pytest.raises(ShmError):
        list(check_config(load(None, {}, {**flags, "disk.path": "/proc/d", "disk.size": "64MiB"}), Host()))
    assert re.fullmatch("warning: .* /proc/d .*\n", capsys.readouterr().err)


def sets(*settings: str) -> list[str]:
    """Returns the options that give these settings."""
    return [word for each in settings for word in ("--set", each)]


def without_numbers(text: str) -> str:
    """Returns a message without amounts of memory, which differ from moment to moment."""
    return re.sub(r"[0-9.]+ ?([KMGT]iB)", "N", text)


@as_root
@pytest.mark.parametrize("path", ["folder/s", "folder/new/s"])
def test_a_check_by_a_user_who_may_not_create_the_socket_fails_as_the_start_would(path: str, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o755)
        (Path(place) / "folder").mkdir(mode=0o755)
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/{path}")
        checked, started = (pagetierd(*given, *more, code=CHECK_AS_NOBODY) for more in (("--check",), ()))
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported and "set another socket" in checked.reported


@as_root
def test_a_socket_that_a_killed_daemon_of_root_has_left_is_not_said_to_be_listened_on(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place, socket.socket(socket.AF_UNIX) as left:
        Path(place).chmod(0o755)
        left.bind(f"{place}/s")
        Path(f"{place}/s").chmod(0o660)
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/s")
        checked, started = (pagetierd(*given, *more, code=CHECK_AS_NOBODY) for more in (("--check",), ()))
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported
    assert f"user 65534 may not open {place}/s of user 0: if no daemon listens on it, have root" in started.reported


@as_root
@pytest.mark.parametrize(
    ("folder", "group", "words"),
    [("pagetier-65534", "65534", "others may write to "), ("any", "0", "use one of the daemon's own groups")],
    ids=["folder", "group"],
)
def test_an_untrusted_folder_and_a_foreign_group_fail_as_at_the_start(
    folder: str, group: str, words: str, name: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o777)
        (Path(place) / folder).mkdir()
        (Path(place) / folder).chmod(0o777)
        os.chown(Path(place) / folder, 65534, 65534)
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/{folder}/s", f"access.socket_group={group}")
        checked, started = (pagetierd(*given, *more, code=CHECK_AS_NOBODY) for more in (("--check",), ()))
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported and words in started.reported


@as_root
def test_a_disk_folder_that_this_user_may_not_write_to_is_a_warning_with_the_command(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o777)
        (Path(place) / "root").mkdir(mode=0o755)
        disk = (f"disk.path={place}/root/disk", "disk.size=64MiB")
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/s", *disk)
        checked = pagetierd(*given, "--check", code=CHECK_AS_NOBODY)
    assert checked.code == Exit.OK, checked.text
    assert f"warning: no disk tier: {place}/root/disk cannot be used; user 65534 may not write there" in checked.text
    assert f"install -d -m 700 -o 65534 {place}/root/disk" in checked.text


@as_root
@pytest.mark.parametrize("left", ["0", "owner"])
def test_what_a_daemon_of_root_has_left_in_the_disk_folder_is_a_warning_with_the_command(left: str, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        disk = Path(place) / "disk"
        Path(place).chmod(0o777)
        disk.mkdir(mode=0o700)
        os.chown(disk, 65534, 65534)
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/s", f"disk.path={disk}", "disk.size=64MiB")
        assert "warning" not in pagetierd(*given, "--check", code=CHECK_AS_NOBODY).text
        make = (disk / left).mkdir if left == "0" else (disk / left).touch
        make(mode=0o700)
        checked = pagetierd(*given, "--check", code=CHECK_AS_NOBODY)
    assert checked.code == Exit.OK, checked.text
    denied = f"warning: no disk tier: {disk} cannot be used by the disk tier: Permission denied; user 65534 may not"
    assert denied in checked.text and f"as root, run chown -R 65534 {disk}" in checked.text, checked.text


def test_the_arena_of_a_daemon_that_runs_fits_however_little_memory_is_left(tmp_path: Path) -> None:
    with RunningDaemon("16MiB", "64KiB") as daemon:
        own = {"name": daemon.name, "socket": str(daemon.socket)}
        own |= {"arena.size": "16MiB", "arena.frame_size": "64KiB"}
        full = Host(host_files(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 0 kB"}))
        lines = list(check_config(load(None, {}, own), full))
        assert lines[0] == "the configuration is valid"
        with pytest.raises(ShmError, match="does not fit"):
            list(check_config(load(None, {}, own | {"arena.size": "32MiB"}), full))


def test_a_fleet_whose_folder_is_not_mounted_lets_a_running_daemon_be_reloaded(tmp_path: Path) -> None:
    given = {"arena.size": "1MiB", "arena.frame_size": "64KiB", "remote.url": f"file://{tmp_path}/away"}
    with RunningDaemon("1MiB", "64KiB") as daemon:
        running = load(None, {}, given | {"name": daemon.name, "socket": str(daemon.socket)})
        why = f"{tmp_path}/away is not a folder: create it, or mount its file system"
        assert f"warning: on this host {why}" in list(check_config(running, Host()))
    with pytest.raises(ConfigError, match="is not a folder"):
        list(check_config(running, Host()))


def test_an_index_smaller_than_the_arena_is_a_warning() -> None:
    assert "index.entries = 5 " in warnings({"index.entries": "5"})


# --- segments that an earlier daemon has left, or a running one has ---------------------------------------------------


@pytest.mark.parametrize(
    ("other", "have", "wanted"),
    [
        (["--arena-size", "32MiB"], "arena.size = 16MiB", "arena.size = 32MiB"),
        (["--set", "arena.frame_size=128KiB"], "arena.frame_size = 64KiB", "arena.frame_size = 128KiB"),
        (["--set", "index.entries=5000"], "index.entries = 256", "index.entries = 5000"),
    ],
)
def test_pages_left_in_another_arena_fail_as_at_the_start(
    left: RunningDaemon, other: list[str], have: str, wanted: str
) -> None:
    checked, started = pagetierd(*arguments(left, *other), "--check"), pagetierd(*arguments(left, *other))
    assert (checked.code, started.code) == (Exit.UNFIT, Exit.UNFIT), checked.text + started.text
    found = f"segments {left.name!r} contain pages and have {have}; the configuration asks for {wanted}"
    assert checked.reported == f"{found}; --fresh discards what is in them"
    assert pagetierd(*arguments(left, *other), "--fresh", "--check").code == Exit.OK
    with_disk = sets(f"disk.path={left.folder.name}/disk", "disk.size=64MiB")
    advised = pagetierd(*arguments(left, *other), *with_disk, "--check").reported
    way = f"start once with {have} and stop, which writes unwritten pages to disk"
    if "frame_size" in have:
        way = "set the former value to keep them, since the new one loses what is in memory and on disk"
    assert way in advised and way in pagetierd(*arguments(left, *other), *with_disk).text
    assert pagetierd(*arguments(left), "--check").code == Exit.OK


def test_pages_left_in_another_format_fail_as_at_the_start(left: RunningDaemon) -> None:
    write_format(left.name, FORMAT + 1)
    checked, started = pagetierd(*arguments(left), "--check"), pagetierd(*arguments(left))
    write_format(left.name, FORMAT)
    assert (checked.code, started.code) == (Exit.UNFIT, Exit.UNFIT), checked.text + started.text
    assert checked.reported == started.reported and f"this build reads format {FORMAT}" in checked.reported


def write_format(name: str, number: int) -> None:
    """Makes the index one of this format."""
    at = next(offset for field, offset, _ in HEAD_LAYOUT.fields if field == "format")
    with Path(f"/dev/shm/{name}.index").open("r+b") as index:
        index.seek(at)
        index.write(number.to_bytes(4, "little"))


def test_segments_without_pages_are_no_failure_in_another_arena() -> None:
    with RunningDaemon() as daemon:
        daemon.kill()
        assert pagetierd(*arguments(daemon, "--arena-size", "32MiB"), "--check").code == Exit.OK
        daemon.start()


def test_a_restart_into_another_arena_is_a_warning_beside_the_running_daemon(daemon: RunningDaemon) -> None:
    fill(daemon)
    checked = pagetierd(*arguments(daemon, "--arena-size", "32MiB"), "--check")
    assert checked.code == Exit.OK, checked.text
    assert f"note: a daemon of this name (PID {daemon.pid}) uses its segments" in checked.text
    assert "warning: a restart that keeps pages would be refused" in checked.text
    assert "have arena.size = 16MiB; the configuration asks for arena.size = 32MiB; stop and start" in checked.text
    other_frames = pagetierd(*arguments(daemon, "--set", "arena.frame_size=128KiB"), "--check").text
    assert "arena.frame_size = 128KiB; stop, then start with --fresh, which loses what is in memory" in other_frames
    assert "warning" not in pagetierd(*arguments(daemon), "--check").text


@as_root
def test_segments_of_another_user_fail_as_at_the_start() -> None:
    with RunningDaemon() as daemon, tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o777)
        given = arguments(daemon, "--socket", f"{place}/s")
        checked, started = (pagetierd(*given, *more, code=CHECK_AS_NOBODY) for more in (("--check",), ()))
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported and "belongs to user root" in checked.reported


# --- sockets in use ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["metrics.listen", "http.listen"])
def test_a_port_in_use_fails_as_at_the_start_also_beside_the_running_daemon(
    setting: str, daemon: RunningDaemon, tmp_path: Path, name: str
) -> None:
    (tmp_path / "token").write_text("a" * 32)
    (tmp_path / "token").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = sets(f"{setting}=127.0.0.1:{other.getsockname()[1]}", f"http.token_file={tmp_path}/token")
        own = [*sets(f"name={name}", f"socket={tmp_path}/s", "arena.size=8MiB"), *used]
        checked, started = pagetierd(*own, "--check"), pagetierd(*own)
        beside = pagetierd(*arguments(daemon, *used), "--check")
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported == beside.reported
    assert "Address already in use: stop the process that uses it" in beside.reported and beside.code == Exit.REFUSED


def test_what_the_running_daemon_listens_on_is_no_failure(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    used = sets(f"metrics.listen={port}", f"http.listen={tmp_path}/http")
    with RunningDaemon("16MiB", "64KiB", *used) as daemon:
        checked = pagetierd(*arguments(daemon), *used, "--check")
        other = pagetierd(*arguments(daemon, "--name", "pagetier-test-other"), "--check")
    assert checked.code == Exit.OK and f"(PID {daemon.pid})" in checked.text, checked.text
    assert other.code == Exit.REFUSED
    another = "set another socket here and in the engines (PAGETIER_SOCKET)"
    assert other.reported == f"another daemon listens on {daemon.socket}: stop it, or {another}"


@as_root
def test_a_dead_socket_of_another_user_fails_as_at_the_start(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder, socket.socket(socket.AF_UNIX) as left:
        Path(folder).chmod(0o755)
        left.bind(f"{folder}/s")
        Path(f"{folder}/s").chmod(0o666)
        given = ("--socket", f"{folder}/s", "--arena-size", "1MiB", "--name", name)
        started, checked = (pagetierd(*given, *more, code=CHECK_AS_NOBODY) for more in ((), ("--check",)))
    assert started.reported == checked.reported
    assert started.reported.startswith(f"socket = {folder}/s, left by a daemon of user root that has ended: have root ")
    assert started.reported.endswith("remove it, or set another socket here and in the engines (PAGETIER_SOCKET)")


def test_a_file_in_place_of_a_socket_fails_as_at_the_start(tmp_path: Path, given: list[str]) -> None:
    (tmp_path / "s").touch()
    checked, started = pagetierd(*given, "--check"), pagetierd(*given)
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED)
    assert checked.reported == started.reported and "exists and is not a socket" in checked.reported


@pytest.mark.parametrize(("mode", "expected"), [("0660", True), ("0666", False)])
def test_a_socket_mode_that_keeps_out_configured_users_is_a_warning(mode: str, *, expected: bool) -> None:
    found = warnings({"access.users": "65534", "access.socket_mode": mode})
    assert ("the socket's mode 0660 keeps out users that access.users" in found) is expected


@as_root
def test_a_group_that_roots_check_finds_may_be_that_of_a_service(tmp_path: Path) -> None:
    at = {"socket": f"{tmp_path}/s"}
    assert warnings({**at, "access.groups": "4711"}) == ""
    assert "keeps out" in warnings({**at, "access.groups": "4711,4713"})
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(at["socket"])
    assert "keeps out" in warnings({**at, "access.groups": "4711"}), "the socket has root's group"


# --- folders of the disk tier -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("open to all", "all users may write to DISK: chmod o-w DISK"),
        ("foreign file", "DISK contains other files (holiday.jpg)"),
        ("in use", "DISK is in use by another daemon"),
    ],
)
def test_a_folder_that_a_worker_refuses_is_a_warning_in_its_words(
    state: str, words: str, tmp_path: Path, given: list[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    (disk / "owner").touch(0o600)
    if state == "open to all":
        disk.chmod(0o777)
    if state == "foreign file":
        (disk / "holiday.jpg").touch()
    before = sorted(disk.iterdir())
    with (disk / "owner").open() as owner:
        if state == "in use":
            fcntl.flock(owner, fcntl.LOCK_EX)
        found = warnings({"disk.path": str(disk), "disk.size": "64MiB", "socket": str(tmp_path / "s")})
        assert f"warning: no disk tier: {words.replace('DISK', str(disk))}" in found
        assert sorted(disk.iterdir()) == before
        with RunningDaemon("16MiB", "64KiB", *sets(f"disk.path={disk}", "disk.size=64MiB")) as daemon:
            assert eventually(lambda: daemon.snapshot().disk.standing is Standing.DOWN)
            assert words.replace("DISK", str(disk)) in daemon.snapshot().disk.trouble


def test_the_folder_of_the_running_daemon_is_no_warning(tmp_path: Path) -> None:
    with RunningDaemon("16MiB", "64KiB", *sets(f"disk.path={tmp_path}/disk", "disk.size=64MiB")) as daemon:
        daemon.wait_disk_open()
        given = sets(f"disk.path={tmp_path}/disk", "disk.size=64MiB")
        own = pagetierd(*arguments(daemon), *given, "--check")
        other = pagetierd(
            *sets("name=pagetier-test-other", f"socket={tmp_path}/s", "arena.size=8MiB"), *given, "--check"
        )
    assert own.code == other.code == Exit.OK and "warning" not in own.text
    assert f"{tmp_path}/disk is in use by another daemon" in other.text


@pytest.mark.parametrize(
    ("made_with", "now", "words"),
    [
        ({}, {"arena.frame_size": "1MiB"}, "arena.frame_size = 64KiB, not arena.frame_size = 1MiB"),
        ({}, {"disk.store": "lmdb"}, "disk.store = files, not disk.store = lmdb"),
        ({"disk.store": "lmdb"}, {"disk.store": "files"}, "disk.store = lmdb, not disk.store = files"),
        (
            {"disk.compress": "on"},
            {"disk.compress": "on", "arena.frame_size": "1MiB"},
            "slots of 16KiB, not arena.frame_size = 1MiB",
        ),
    ],
)
def test_settings_that_would_lose_pages_on_disk_fail_as_the_start_does(
    made_with: dict[str, str], now: dict[str, str], words: str, tmp_path: Path
) -> None:
    disk = {"disk.path": f"{tmp_path}/disk", "disk.size": "64MiB"}
    with RunningDaemon("16MiB", "64KiB", *settings({**disk, **made_with})) as daemon:
        daemon.wait_disk_open()
        assert pagetierd(*arguments(daemon, *settings({**disk, **now})), "--check").text.count("--fresh") == 0, "empty"
        fill(daemon)
        daemon.until_written()
        beside = pagetierd(*arguments(daemon, *settings({**disk, **now})), "--check")
        found = f"the disk tier in {tmp_path}/disk has 3 pages with {words}: "
        assert beside.code == Exit.OK and f"warning: {found}a start is refused: set the former value" in beside.text
        daemon.stop()
        checked, started = (
            pagetierd(*arguments(daemon, *settings({**disk, **now})), *more) for more in (["--check"], [])
        )
        assert (checked.code, started.code) == (Exit.UNFIT, Exit.UNFIT), checked.text + started.text
        assert checked.reported == started.reported and checked.reported.startswith(found), checked.text
        assert "set the former value" in started.reported and "start once with --fresh" in started.reported
        assert daemon.leftovers() == []
        daemon.start(*settings({**disk, **made_with}))
        daemon.wait_disk_open()
        assert daemon.header().disk_pages == 3, "what was refused is still there"
        daemon.stop()
        emptying = pagetierd(*arguments(daemon, *settings({**disk, **now})), "--check", "--fresh")
        assert emptying.code == Exit.OK and f"warning: {found}--fresh discards them" in emptying.text
        daemon.start(*settings({**disk, **now}), "--fresh")
        daemon.wait_disk_open()
        assert daemon.header().disk_pages == 0
        emptied = re.compile(r"level=warning name=pagetierd.disk event=disk_open .*rebuilt empty")
        assert eventually(lambda: emptied.search(daemon.log.read_text())), daemon.log.read_text()
        assert f"{found}--fresh discards them" in daemon.log.read_text()
        assert pagetierd(*arguments(daemon, *settings({**disk, **now})), "--check").text.count("--fresh") == 0


@pytest.mark.parametrize("more", [(), ("--fresh",)])
def test_a_start_beside_a_daemon_is_refused_for_that_and_not_for_its_settings(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    disk = {"disk.path": f"{tmp_path}/disk", "disk.size": "64MiB"}
    with RunningDaemon("16MiB", "64KiB", *settings(disk)) as daemon:
        daemon.wait_disk_open()
        fill(daemon)
        daemon.until_written()
        second = pagetierd(*arguments(daemon, *settings({**disk, "disk.store": "lmdb"})), *more)
    assert second.code == Exit.REFUSED, second.text
    assert f"another daemon uses segments '{daemon.name}'" in second.reported
    assert "disk.store" not in second.text


def settings(given: dict[str, str]) -> list[str]:
    """Returns flags for settings."""
    return sets(*(f"{name}={value}" for name, value in given.items()))


@as_root
def test_a_note_says_to_root_that_a_folder_belongs_to_another_user(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    os.chown(tmp_path / "disk", 65534, -1)
    given = {"disk.path": str(tmp_path / "disk"), "disk.size": "64MiB", "socket": str(tmp_path / "s")}
    lines = list(check_config(load(None, {}, {"arena.size": "8MiB", **given}), Host()))
    assert (
        f"note: {tmp_path}/disk belongs to user nobody: a daemon of that user can use it, one of root cannot" in lines
    )
