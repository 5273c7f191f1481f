"""`pagetier doctor` reports what is in order, and what to do about problems."""

from __future__ import annotations

import os
import re
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from fake_host import host_files
from fake_snapshots import snapshot
from file_changes import write_at
from memory_cgroup import limited
from other_users import NOBODY, as_root, output_as
from pagetier.daemon.cli import main
from pagetier.daemon.cli.daemon_connection import daemon_at
from pagetier.daemon.cli.doctor import daemon_checks, host_checks
from pagetier.daemon.cli.doctor.daemon_checks import check_daemon, check_folder, check_socket, slower_tiers
from pagetier.daemon.cli.doctor.disk_checks import check_disk, check_service_may_write
from pagetier.daemon.cli.doctor.host_checks import (
    check_huge_pages,
    check_locked_memory,
    check_shared_memory,
    check_users,
)
from pagetier.daemon.cli.doctor.result import Level
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import Config
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.schema import AccessOptions, ArenaOptions, IndexOptions
from pagetier.daemon.host.host import Host
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import Phase
from pagetier.shm.exit_codes import Exit
from pagetier.shm.segment_files import survey
from refused_starts import fill
from running_daemon import RunningDaemon, namespace
from terminal import pagetier_on_terminal

WORLD = AccessOptions(users=(IdRange(NOBODY, NOBODY),))


def doctor(*arguments: str) -> Result:
    """Runs `pagetier doctor` without a daemon."""
    variables = {variable: None for variable in os.environ if variable.startswith("PAGETIER_")}
    return CliRunner(env={**variables, "PAGETIER_NAME": "pagetier-test-none"}).invoke(main, ["doctor", *arguments])


def lines_of(result: Result) -> dict[str, str]:
    """Returns the level and the text of each check."""
    found = re.findall(r"^(ok|warning|problem) +(\S+(?: \S+)?) {2,}(.*)$", result.output, re.MULTILINE)
    return {what: f"{level}: {text}" for level, what, text in found}


def test_a_sound_daemon_is_ok() -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        client.store(namespace().keys(range(32)), [bytes(1000)] * 2)
        result = daemon.pagetier("doctor")
    lines = lines_of(result)
    assert result.exit_code == Exit.OK, result.output
    assert re.search(r"2 of [0-9,]+ pages in ", lines["daemon"])
    assert ", 1 client" in lines["daemon"]
    assert all(lines[what].startswith("ok") for what in ("integrity", "socket", "folder", "/dev/shm", "pidfd"))
    assert "no problems" in result.output


def test_the_disk_is_not_missed_before_the_arena_is_populated(tmp_path: Path) -> None:
    config = Config(disk=DiskOptions(path=(tmp_path,), size=(64 << 20,)))
    started = structs.replace(snapshot(), disk=DiskReport())
    daemon = structs.replace(started.daemon, phase=Phase.STARTING, progress=0.25)
    starting = [result.text for result in check_disk(config, Host(), structs.replace(started, daemon=daemon))]
    assert starting[-1] == "is opened when the arena is populated"
    assert "without a disk tier" in [result.text for result in check_disk(config, Host(), started)][-1]


def test_no_folder_is_ok_that_the_disk_tier_rejects(tmp_path: Path) -> None:
    config = Config(disk=DiskOptions(path=(tmp_path,), size=(64 << 20,)))
    trouble = f"{tmp_path} belongs to user 7"
    device = DeviceReport(folder=str(tmp_path), standing=Standing.DOWN, trouble=trouble)
    down = structs.replace(
        snapshot(), disk=DiskReport(folder=str(tmp_path), standing=Standing.DOWN, trouble=trouble, devices=(device,))
    )
    assert "disk folder" in [result.what for result in check_disk(config, Host(), None)]
    assert "disk folder" not in [result.what for result in check_disk(config, Host(), down)]
    tmp_path.chmod(0o777)
    for seen in (None, down):
        (found,) = (result for result in check_disk(config, Host(), seen) if result.what == "disk folder")
        assert found.level is Level.PROBLEM and f"chmod o-w {tmp_path}" in found.text


@pytest.mark.parametrize(("slower", "loaded", "named"), [(0, 0, False), (5, 0, True), (9, 1, False), (21, 2, True)])
@pytest.mark.parametrize(
    ("tier", "counter", "needs"),
    [
        ("memory", "memory", {}),
        ("disk", "disk", {"disk": DiskOptions(path=(Path("/pages"),))}),
        ("fleet", "remote", {"remote": RemoteOptions(url="file:///pages")}),
    ],
)
def test_a_tier_that_hardly_ever_pays_is_named(
    tier: str, counter: str, needs: dict[str, Any], slower: int, loaded: int, named: bool
) -> None:
    counts = {"memory_tokens": 9, "disk_tokens": 9, "missed_tokens": 99, "remote_tokens": 9}
    counts |= {f"{counter}_tokens": loaded, f"{counter}_slower_tokens": slower}
    seen = structs.replace(snapshot(), lookups=LookupStats(lookups=9, **counts))
    found = list(slower_tiers(seen, Config(**needs)))
    assert [one.what for one in found] == [f"{tier} speed"] * named
    assert all(one.level is Level.WARNING and f" {slower} tokens instead" in one.text for one in found)
    assert not needs or not list(slower_tiers(seen, Config())), "the tier is not configured"


def test_no_daemon_is_a_problem_with_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text('[arena]\nsize = "1MiB"\nframe_size = "64KiB"\n')
    result = doctor("--config", str(config), "--socket", str(tmp_path / "none.sock"))
    assert result.exit_code == Exit.WRONG
    assert "start pagetierd" in lines_of(result)["daemon"]
    assert "fits" in lines_of(result)["arena"]


def test_an_arena_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text('[arena]\nsize = "900TiB"\nframe_size = "4MiB"\n')
    result = doctor("--config", str(config), "--socket", str(tmp_path / "none.sock"))
    assert re.search(r"^problem.*does not fit.*would fit: arena.size = ", result.output, re.MULTILINE)


def test_a_configuration_that_does_not_parse_is_code_2(tmp_path: Path) -> None:
    config = tmp_path / "pagetier.toml"
    config.write_text("[arena]\nsiez = 1\n")
    result = doctor("--config", str(config))
    assert result.exit_code == Exit.USAGE
    assert 'did you mean "size"' in result.output
    assert doctor("--config", str(tmp_path / "none.toml")).exit_code == Exit.USAGE


def test_segments_without_a_daemon_are_a_warning() -> None:
    with RunningDaemon() as daemon:
        assert daemon.name not in daemon.pagetier("doctor").output.partition("leftovers")[2]
        daemon.kill()
        result = daemon.pagetier("doctor")
        assert "the next daemon of that name takes them over" in result.output
        assert f"pagetierd --name {daemon.name} --release-memory, as that user or root, releases them" in result.output
        daemon.start()


@as_root
def test_segments_of_another_user_that_no_process_is_seen_to_lock_are_a_warning() -> None:
    imports = "import pagetier.daemon.cli.doctor; from pagetier.daemon.cli import main"
    with RunningDaemon() as daemon:
        words = rf"warning +leftovers .* of user root in segments {daemon.name}, whose daemon, if there is one, is not"
        _, running = output_as(NOBODY, imports, "main()", "doctor", "--socket", "/none/s")
        assert not re.search(words, running)
        daemon.kill()
        _, ended = output_as(NOBODY, imports, "main()", "doctor", "--socket", "/none/s")
        assert re.search(words, ended), ended
        assert f"pagetierd --name {daemon.name} --release-memory, as that user or root, releases" in ended
        daemon.start()


def test_leftovers_in_one_line_name_who_takes_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningDaemon() as daemon:
        daemon.kill()
        found = next(each for each in survey() if each.name == daemon.name)
        monkeypatch.setattr(daemon_checks, "survey", lambda: [found] * 4)
        (result,) = daemon_checks.check_leftovers()
        assert result.text.index("next daemon of each name") < result.text.index("--release-memory")
        daemon.start()


@pytest.mark.parametrize(
    ("free", "level", "offered"),
    [(0, Level.PROBLEM, "set another disk.path"), (64, Level.WARNING, 'disk.size = "64MiB" would fit')],
)
def test_a_size_beyond_the_disk_is_a_warning_and_a_problem_only_if_no_tier_fits(
    free: int, level: Level, offered: str, tmp_path: Path
) -> None:
    mib = 1 << 20
    host = Host(statvfs=lambda _: os.statvfs_result((mib, mib, 512, free, free, 0, 0, 0, 0, 255)))
    config = Config(disk=DiskOptions(path=(tmp_path,), size=(1 << 30,)))
    (room,) = (each for each in check_disk(config, host, None) if each.what == "disk room")
    assert room.level is level and offered in room.text


def test_a_restart_that_would_fail_is_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "other.toml"
    config.write_text('[arena]\nsize = "1GiB"\n')
    with RunningDaemon() as daemon:
        found = lines_of(daemon.pagetier("doctor", "--config", str(config)))["restart"]
        assert "warning: the daemon has an arena of 16.0 MiB in frames of " in found
        header = daemon.header()
        as_it_is = Config(
            name=daemon.name,
            arena=ArenaOptions(size=header.arena_bytes, frame_size=header.frame_bytes),
            index=IndexOptions(entries=header.entries, namespaces=header.spaces),
        )
        with daemon_at(daemon.socket) as reached:
            assert "restart" not in [result.what for result in check_daemon(reached, as_it_is)]
            other = structs.replace(as_it_is, index=IndexOptions(entries=header.entries, namespaces=99))
            (found,) = [result.text for result in check_daemon(reached, other) if result.what == "restart"]
            assert "this configuration asks for" in found and "99 namespaces" in found
            assert "a restart with it creates new segments" in found
            fill(daemon)
            (found,) = [result.text for result in check_daemon(reached, other) if result.what == "restart"]
            assert "a restart with it fails while pages are in memory" in found


def test_a_frame_size_that_would_lose_pages_on_disk_is_a_warning_and_without_a_daemon_a_problem(tmp_path: Path) -> None:
    disk = f'[disk]\npath = "{tmp_path}/disk"\nsize = "64MiB"\n'
    other, moved = tmp_path / "other.toml", tmp_path / "moved.toml"
    other.write_text(f'[arena]\nframe_size = "1MiB"\n{disk}')
    moved.write_text(other.read_text().replace("/disk", "/elsewhere"))
    with RunningDaemon("16MiB", "64KiB", "--set", f"disk.path={tmp_path}/disk", "--set", "disk.size=64MiB") as daemon:
        daemon.wait_disk_open()
        assert "disk pages" not in lines_of(daemon.pagetier("doctor", "--config", str(other))), "it has none"
        fill(daemon)
        daemon.until_written()
        found = lines_of(daemon.pagetier("doctor", "--config", str(other)))
        assert found["restart"].endswith("with pages on disk that start needs --fresh, which discards them, too")
        settings = "3 pages with arena.frame_size = 64KiB, not arena.frame_size = 1MiB: a start is refused: "
        lost = f"the disk tier in {tmp_path}/disk has {settings}"
        assert found["disk pages"].startswith(f"warning: {lost}") and "--fresh" in found["disk pages"]
        elsewhere = lines_of(daemon.pagetier("doctor", "--config", str(moved)))
        assert elsewhere["restart"].endswith("discard what is in memory") and "disk pages" not in elsewhere
        assert "disk pages" not in lines_of(daemon.pagetier("doctor"))
        daemon.stop()
        assert lines_of(daemon.pagetier("doctor", "--config", str(other)))["disk pages"].startswith(f"problem: {lost}")


def test_a_folder_that_the_service_cannot_write_to_is_a_problem(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    disk = DiskOptions(path=(Path("/srv/pagetier"),), size=(1 << 30,))
    for name, unit in (("pagetier", "pagetierd"), ("pagetier-acme", "pagetierd@acme")):
        config = Config(name=name, disk=disk)
        assert not list(check_service_may_write(config, Host(tmp_path)))  # no service
        (units / f"{unit.removesuffix('acme')}.service").write_text("[Service]\nUser=pagetier\n")
        (found,) = check_service_may_write(config, Host(tmp_path))
        assert f"`systemctl edit {unit}`" in found.text
        (units / f"{unit}.service.d").mkdir()
        (units / f"{unit}.service.d/override.conf").write_bytes(b"# caf\xe9\n[Service]\nReadWritePaths=/var/x -/srv\n")
        assert not list(check_service_may_write(config, Host(tmp_path)))
    own = Config(disk=DiskOptions(path=(Path("/var/lib/pagetier/tier"),), size=(1 << 30,)))
    assert not list(check_service_may_write(own, Host(tmp_path)))


@as_root
def test_an_observer_gets_all_checks_but_the_integrity() -> None:
    imports = "import pagetier.daemon.cli.doctor, pagetier.daemon.cli.tables; from pagetier.daemon.cli import main"
    with RunningDaemon(
        "16MiB", "64KiB", "--set", "access.socket_mode=0666", "--set", "access.watch_users=nobody"
    ) as daemon:
        Path(daemon.folder.name).chmod(0o755)
        words, environ = ("doctor", "--socket", str(daemon.socket)), {"PAGETIER_NAME": daemon.name}
        _, output = output_as(NOBODY, imports, "main()", *words, environ=environ)
    assert re.search(r"^warning +integrity +not checked, .* may only watch", output, re.MULTILINE)
    assert re.search(r"^ok +disk ", output, re.MULTILINE), output
    assert " leftovers " in output and "Traceback" not in output
    assert re.search(r"^\w+ problems?, \d+ warnings?$", output.splitlines()[-1])


def test_a_daemon_that_listens_on_another_socket_is_named(tmp_path: Path) -> None:
    arguments = ["doctor", "--socket", str(tmp_path / "none.sock")]
    with RunningDaemon() as daemon:
        output = CliRunner(env={"PAGETIER_NAME": daemon.name}).invoke(main, arguments).output
        assert re.search(rf"^problem +daemon .*; process {daemon.pid} is a daemon of this name: ", output, re.MULTILINE)
        assert "of this name" not in CliRunner(env={"PAGETIER_NAME": f"{daemon.name}-2"}).invoke(main, arguments).output


def test_segments_of_another_format_are_a_warning() -> None:
    with RunningDaemon() as daemon:
        daemon.kill()
        write_at(Path("/dev/shm") / f"{daemon.name}.index", 8, struct.pack("<I", 99))
        output = daemon.pagetier("doctor").output
        assert re.search(rf"warning +leftovers .*{daemon.name} .*: the build that created them takes them over", output)
        daemon.start("--fresh")


def test_a_damaged_index_is_a_problem() -> None:
    space = namespace()
    with RunningDaemon() as daemon:
        with daemon.client() as client:
            client.store(space.keys(range(16)), [bytes(1000)])
        index = Path("/dev/shm") / f"{daemon.name}.index"
        # `listed` of pt_space in core/common/layout.h: after the digest and four counts
        listed = index.read_bytes().index(space.digest) + len(space.digest) + 4 * 8
        write_at(index, listed, struct.pack("<Q", 7))
        result = daemon.pagetier("doctor")
        write_at(index, listed, struct.pack("<Q", 1))
        assert result.exit_code == Exit.WRONG
        assert "1 pages on its list, 7 in its record" in result.output
        assert all("--fresh" in line for line in result.output.splitlines() if line.startswith("problem"))


def test_long_lines_are_wrapped_on_a_terminal_only(tmp_path: Path) -> None:
    arguments = ["doctor", "--socket", str(tmp_path / "none.sock")]
    shown = pagetier_on_terminal(arguments)
    plain = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in shown.lines]
    assert shown.code == Exit.WRONG
    assert "\x1b" in shown.text
    assert any(line.startswith(" " * 24) for line in plain)
    assert not any(line.startswith(" ") for line in doctor(*arguments[1:]).output.splitlines())


def test_a_folder_that_others_can_write_to_is_a_problem(tmp_path: Path) -> None:
    assert check_folder(tmp_path).level is Level.OK
    assert "does not exist yet" in check_folder(tmp_path / "a/b").text
    tmp_path.chmod(0o777)
    assert "chmod go-w" in check_folder(tmp_path).text
    tmp_path.chmod(0o1777)
    assert check_folder(tmp_path).level is Level.OK
    assert check_folder(Path("/dev/null/none")).level is Level.PROBLEM


@as_root
def test_a_folder_of_another_user_in_tmp_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "pagetier-0"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    assert (
        check_folder(folder).level is Level.OK
    )  # like a tenant's folder for root: no other user can create folders here
    tmp_path.chmod(0o1777)
    assert check_folder(folder).level is Level.PROBLEM


def test_a_socket_that_clients_cannot_open_is_a_warning(tmp_path: Path) -> None:
    assert list(check_socket(tmp_path / "none", AccessOptions())) == []
    (tmp_path / "file").touch()
    assert [result.level for result in check_socket(tmp_path / "file", AccessOptions())] == [Level.PROBLEM]
    with RunningDaemon() as daemon:
        assert [result.level for result in check_socket(daemon.socket, AccessOptions())] == [Level.OK]
        (found,) = check_socket(daemon.socket, WORLD)
        assert found.level is Level.WARNING
        assert 'access.socket_mode = "0666"' in found.text
        daemon.socket.chmod(0o666)
        assert [result.level for result in check_socket(daemon.socket, WORLD)] == [Level.OK]


@pytest.mark.parametrize(
    ("limit", "device", "level"),
    [
        ("unlimited", "dev/kfd", Level.OK),
        (str(1 << 30), "dev/kfd", Level.OK),
        ("65536", "dev/kfd", Level.WARNING),
        ("65536", "proc/driver/nvidia", Level.WARNING),
        ("65536", "dev/null", Level.OK),
    ],
)
def test_a_memlock_limit_below_the_arena_is_a_warning_where_a_driver_may_pin(
    limit: str, device: str, level: Level, tmp_path: Path
) -> None:
    for folder in ("proc/self", device):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/limits").write_text(
        f"Max locked memory         {limit}              {limit}          bytes\n"
    )
    config = Config(socket=Path("/x"), arena=ArenaOptions(size=1 << 30))
    assert check_locked_memory(config, Host(tmp_path)).level is level


def test_what_this_host_lacks_is_reported(tmp_path: Path) -> None:
    never = Config(socket=Path("/x"), arena=ArenaOptions(huge_pages="never"))
    assert check_huge_pages(never, Host(tmp_path), HugePageReport()).level is Level.OK
    assert check_huge_pages(Config(socket=Path("/x")), Host(tmp_path), HugePageReport()).level is Level.WARNING
    assert check_shared_memory(Host(tmp_path)).level is Level.PROBLEM
    assert check_shared_memory(Host()).level is Level.OK


def test_an_old_kernel_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(host_checks, "_MADV_POPULATE_WRITE", 9999)
    monkeypatch.setattr(host_checks, "SO_PEERPIDFD", 9999)
    host_files(tmp_path, {"proc/self/mountinfo": "90 22 0:50 / /proc rw - proc proc rw,hidepid=invisible"})
    found = {result.what: result for result in host_checks.check_kernel(Host(tmp_path))}
    assert found["SO_PEERPIDFD"].text.endswith("other users (hidepid=invisible): mount it with gid=GROUP")
    levels = {what: result.level for what, result in found.items()}
    assert levels == {"pidfd": Level.PROBLEM, "SO_PEERPIDFD": Level.WARNING, "populating": Level.PROBLEM}


def test_a_user_namespace_that_hides_users_is_a_warning(tmp_path: Path) -> None:
    host_files(tmp_path, {"proc/self/uid_map": "0 0 4294967295"})
    assert check_users(AccessOptions(), Host(tmp_path)).level is Level.OK
    host_files(tmp_path, {"proc/self/uid_map": "0 100000 65536"})
    found = check_users(AccessOptions(), Host(tmp_path))
    assert found.level is Level.WARNING and found.text.startswith("65534 stands for everyone that the daemon's user")
    assert check_users(AccessOptions(authorize_by="socket"), Host(tmp_path)).level is Level.OK


def test_memory_that_an_earlier_group_pays_for_is_a_warning() -> None:
    with limited(512 << 20) as first, limited(512 << 20) as second:
        before = list(first.before)
        with RunningDaemon("64MiB", "64KiB", before=before) as daemon:
            assert lines_of(daemon.pagetier("doctor"))["charge"].startswith("ok: the daemon's memory group is charged")
            daemon.kill()
            before[:] = second.before
            daemon.start()
            found = lines_of(daemon.pagetier("doctor"))["charge"]
            assert found.startswith("warning: 6") and "swapped out or charged to another memory group" in found
            daemon.stop()
            daemon.start()
            assert lines_of(daemon.pagetier("doctor"))["charge"].startswith("ok")


def test_a_socket_that_lets_every_user_attach_is_a_warning(tmp_path: Path) -> None:
    socket_path, by_socket = tmp_path / "p.sock", AccessOptions(authorize_by="socket", socket_mode=0o666)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        found = {}
        for folder, mode, access in ((0o755, 0o666, by_socket), (0o750, 0o666, by_socket), (0o755, 0o660, by_socket)):
            tmp_path.chmod(folder)
            socket_path.chmod(mode)
            (found[folder, mode],) = check_socket(socket_path, access)
    assert found.pop((0o755, 0o666)).text.endswith("or close the folder to others")
    assert {result.level for result in found.values()} == {Level.OK}
