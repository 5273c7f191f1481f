"""Tests what `pagetierd --check` says of a valid configuration on this host."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from fake_host import host_files
from free_ports import free_ports
from other_users import as_root
from pagetier.daemon.config.loader import load
from pagetier.daemon.config_check import check_config
from pagetier.daemon.host.host import Host
from pagetier.shm._core import ShmError
from pagetier.shm.exit_codes import Exit
from refused_starts import AS_NOBODY, pagetierd
from running_daemon import RunningDaemon


def warnings(flags: dict[str, str]) -> str:
    """Returns the warnings about a configuration that these flags make."""
    lines = check_config(load(None, {}, {"arena.size": "8MiB", **flags}), Host())
    return "\n".join(line for line in lines if line.startswith("warning"))


def test_a_configuration_that_fits_has_no_warning(tmp_path: Path) -> None:
    given = {"disk.path": str(tmp_path / "new" / "disk"), "disk.size": "64MiB", "socket": str(tmp_path / "socket")}
    assert warnings(given) == ""


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
    assert words.replace("DIR", str(tmp_path)) in checked.reported
    assert without_numbers(checked.reported) == without_numbers(started.reported)


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
        checked, started = (pagetierd(*given, *more, code=AS_NOBODY) for more in (("--check",), ()))
    assert (checked.code, started.code) == (Exit.REFUSED, Exit.REFUSED), checked.text + started.text
    assert checked.reported == started.reported and "set another socket" in checked.reported


@as_root
def test_a_disk_folder_that_this_user_may_not_write_to_is_a_warning_with_the_command(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o777)
        (Path(place) / "root").mkdir(mode=0o755)
        disk = (f"disk.path={place}/root/disk", "disk.size=64MiB")
        given = sets(f"name={name}", "arena.size=8MiB", f"socket={place}/s", *disk)
        checked = pagetierd(*given, "--check", code=AS_NOBODY)
    assert checked.code == Exit.OK, checked.text
    assert f"warning: no disk tier: {place}/root/disk cannot be used; user 65534 may not write there" in checked.text
    assert f"install -d -m 700 -o 65534 {place}/root/disk" in checked.text


def test_the_arena_of_a_daemon_that_runs_fits_however_little_memory_is_left(tmp_path: Path) -> None:
    with RunningDaemon("16MiB", "64KiB") as daemon:
        own = {"name": daemon.name, "socket": str(daemon.socket)}
        own |= {"arena.size": "16MiB", "arena.frame_size": "64KiB"}
        full = Host(host_files(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 0 kB"}))
        lines = list(check_config(load(None, {}, own), full))
        assert lines[0] == "the configuration is valid"
        with pytest.raises(ShmError, match="does not fit"):
            list(check_config(load(None, {}, own | {"arena.size": "32MiB"}), full))


def test_an_index_smaller_than_the_arena_is_a_warning() -> None:
    assert "index.entries = 5 " in warnings({"index.entries": "5"})
