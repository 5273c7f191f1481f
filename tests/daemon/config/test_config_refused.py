"""Invalid configurations are rejected by errors that name the place, the value and the likely intention."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.load import MOST_BYTES, ConfigError, fields, load
from pagetier.daemon.release_memory import name_meant
from pagetier.shm._core import DISK_DEVICES


def refused(path: Path | None = None, env: dict[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env or {}, flags)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pagetierd.toml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arena_size = 1", ['unknown key "arena_size"', "= 1"]),
        ('[arena]\nsiez = "1G"', ['unknown key "siez"', "[arena]", '"1G"', 'did you mean "size"']),
        ("[arena]\nframe-size = 4096", ['"frame-size"', 'did you mean "frame_size"']),
        ("frame_size = 4096", ['unknown key "frame_size"', 'did you mean "arena.frame_size"']),
        ("[log]\nsocket_mode = 1", ['"socket_mode"', "[log]", 'did you mean "access.socket_mode"']),
        ("[aerna]\nsize = 1", ["unknown table [aerna]", 'did you mean "arena"']),
        ("[arena.size]\nx = 1", ["arena.size", "not a size"]),
        ("[zzz]", ["unknown table [zzz]"]),
        ("[arena.sub]", ["unknown table [arena.sub]"]),
        ("arena = 3", ["arena = 3", "must be a table, [arena]"]),
        ("[[arena]]\nsize = 1", ["arena = ", "must be a table"]),
        ('[arena]\nsize = "8545*4096"', ["arena.size", '"8545*4096"']),
        ("[arena]\nsize = 4095", ["arena.size", "4095", "too small", "4KiB"]),
        ("[arena]\nsize = -1", ["arena.size", "-1"]),
        ("[arena]\nsize = true", ["arena.size", "true is not a size"]),
        ("[arena]\nsize = 1979-05-27", ["1979-05-27 is not a size"]),
        ('[arena]\nsize = ["1GiB", 2]', ['["1GiB", 2] is not a size']),
        ('[arena]\nsize = {a = false, "b c" = 07:32:00}', ['{a = false, "b c" = 07:32:00} is not a size']),
        ("[arena]\nsize = 0x" + "f" * 5000, ["too long to be shown is too large: a size is at most"]),
        ("[store]\nreservation_timeout = [true]", ["[true] is not a duration"]),
        ("[arena]\nsize = 1.5", ["arena.size", "1.5"]),
        ("[arena]\nframe_size = 300000", ["arena.frame_size", "300000", "power of two", "256KiB"]),
        ("[arena]\nframe_size = 2048", ["arena.frame_size", "2048", "too small"]),
        ('[arena]\nprefault = "popluate"', ["arena.prefault", '"popluate"', 'did you mean "populate"']),
        ("[arena]\nhuge_pages = false", ["arena.huge_pages", "false", "never, advise"]),
        ("[arena]\nthreads = -1", ["arena.threads", "-1", "between 0 and 1024"]),
        ("[arena]\nthreads = 4.0", ["arena.threads", "4.0", "whole number"]),
        ('[remote]\nurl = "/mnt/pages"', ["remote.url", "is not an URL", "file:///mnt/pages"]),
        ("[index]\nnamespaces = 0", ["index.namespaces", "0", "between 1 and"]),
        ("[evict]\nlow = nan", ["evict.low", "nan is not a share"]),
        ("[evict]\nhigh = 1", ["evict.high", "1", "0 <= share < 1"]),
        ("[evict]\nlow = -0.1", ["evict.low", "-0.1"]),
        ('[evict]\nlow = "half"', ["evict.low", '"half"', "not a number"]),
        ('[advise]\nwindow = "0s"', ["advise.window", '"0s"', "too short"]),
        ('[store]\nreservation_timeout = "0s"', ["store.reservation_timeout", '"0s"', "too short"]),
        ("[store]\nreservation_timeout = inf", ["store.reservation_timeout", "inf"]),
        ('name = "a/b"', ["name", '"a/b"']),
        ('name = ""', ["name", '""']),
        ('name = "é"', ["name", '"é"']),
        ('socket = "x.sock"', ["socket", '"x.sock"', "absolute", f"{Path.cwd()}/x.sock"]),
        (f'socket = "/{"x" * 107}"', ["socket", "too long", "107"]),
        ('socket = "/a\\u0000b"', ["socket", "not a path"]),
        ("[access]\nsocket_mode = 660", ["access.socket_mode", "660", '"0660"']),
        ('[access]\nsocket_mode = "0880"', ["access.socket_mode", '"0880"']),
        ('[access]\nsocket_mode = "0440"', ["access.socket_mode", '"0440"', "0600"]),
        ('[access]\nusers = ["no-such-user-here"]', ["access.users", "no user", '"no-such-user-here"']),
        ('[access]\ngroups = "root,no-such-group"', ["access.groups", "no group", '"no-such-group"']),
        ("[access]\nusers = [4294967295]", ["access.users", "4294967295"]),
        ("[access]\nusers = [true]", ["access.users", "true"]),
        ('[access]\nusers = "root,,root"', ["access.users", '""']),
        ('[access]\nusers = ["65536-"]', ["access.users", '"65536-" is not a range', "FIRST-LAST"]),
        ('[access]\nusers = ["9-8"]', ["access.users", '"9-8" is not a range', "first number must not be above"]),
        ('[access]\ngroups = "0-4294967295"', ["access.groups", '"0-4294967295"', "4294967294 at most"]),
        ('[access]\nwatch_users = ["a-b"]', ["access.watch_users", "no user", '"a-b"']),
        ('[access]\nsocket_group = "7-8"', ["access.socket_group", '"7-8" is more than one group']),
        ('[access]\nauthorize_by = "sokcet"', ["access.authorize_by", 'did you mean "socket"']),
        ("[access]\nusers = 0", ["access.users", "0", "not a list"]),
        ('[log]\nlevel = "WARN"', ["log.level", '"WARN"', "debug, info, warning, error"]),
        ('[log]\nlevel = ["info"]', ["log.level", "not one of"]),
        ("[store]\nreservation_timeout = 2020-01-01", ["store.reservation_timeout", "2020"]),
        (
            '[store]\nreservation_timeout = "99999999999d"',
            ["store.reservation_timeout", '"99999999999d"', "at most 36500d"],
        ),
        ("[disk]\nstop_timeout = 1e300", ["disk.stop_timeout", "1e+300", "at most 36500d"]),
        ("[store]\nreservation_timeout = 1" + "0" * 400, ["store.reservation_timeout", "at most 36500d"]),
        ("[evict]\nlow = 1" + "0" * 400, ["evict.low", "not a number"]),
        # Text that is not TOML, or at which the parser gives up.
        ("[arena]\nsize = = 3\n", ["line 2, column 8"]),
        ("[arena]\nsize =", ["end of document"]),
        ("[arena]\nsize = 1\n[arena]\n", ["line 3, column 7"]),
        ("[arena]\nsize = " + "9" * 5000, ["a number is too long"]),
        ("x = " + "[" * 3000 + "]" * 3000, ["brackets are nested too deeply"]),
        ("x = 0x" + "f" * 5000, ['unknown key "x"']),
        ("arena = 0x" + "f" * 5000, ["must be a table"]),
        ("arena.size" + ".a" * 5000 + " = 1", ["arena.size: "]),
        ("[arena]\nsize = [" + "{a=" * 100 + "1" + "}" * 100 + "]", ["arena.size: "]),
    ],
)
def test_a_bad_file_is_refused_by_name_key_and_value(text: str, words: list[str], file: Path) -> None:
    file.write_text(text)
    message = refused(file)
    assert message.startswith(f"{file}: ")
    assert [word for word in words if word not in message] == [], message


def test_a_file_that_is_binary_or_missing_is_rejected(file: Path, tmp_path: Path) -> None:
    file.write_bytes('name = "x"\n# é'.encode("latin-1"))
    assert "not UTF-8 text (at line 2)" in refused(file)
    assert refused(tmp_path / "none.toml") == f"{tmp_path}/none.toml: cannot be read: No such file or directory"
    assert "Is a directory" in refused(tmp_path)
    assert "none.toml" in refused(env={"PAGETIER_CONFIG": str(tmp_path / "none.toml")})


def test_fifos_and_devices_are_rejected_at_once(file: Path) -> None:
    os.mkfifo(file)
    for path in (file, Path("/dev/zero")):
        assert refused(path) == f"{path}: not a regular file"
        assert name_meant(path, {}, {}) == "pagetier"


def test_a_file_larger_than_the_limit_is_rejected(file: Path) -> None:
    file.write_text('name = "x"\n#'.ljust(MOST_BYTES, "#"))
    assert load(file, {}, {}).name == "x"
    file.write_text('name = "x"\n#'.ljust(MOST_BYTES + 1, "#"))
    assert refused(file) == f"{file}: too large: at most 1 MiB"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PAGETIER_ARENA_SIEZ": "1G"}, ["PAGETIER_ARENA_SIEZ", '"1G"', 'did you mean "PAGETIER_ARENA_SIZE"']),
        ({"PAGETIER_CONFG": "/x"}, ["PAGETIER_CONFG", 'did you mean "PAGETIER_CONFIG"']),
        ({"PAGETIER_": ""}, ["unknown variable PAGETIER_ "]),
        ({"PAGETIER_ARENA_SIZE": "1X"}, ["variable PAGETIER_ARENA_SIZE", '"1X"']),
        ({"PAGETIER_ARENA_SIZE": ""}, ["variable PAGETIER_ARENA_SIZE", '""']),
        ({"PAGETIER_SOCKET": ""}, ["variable PAGETIER_SOCKET", '""']),
        ({"PAGETIER_COPY_CONFG": "/etc/x.toml"}, ['did you mean "PAGETIER_COPY_CONFIG"']),
    ],
)
def test_bad_variables_are_refused(env: dict[str, str], words: list[str]) -> None:
    message = refused(env=env)
    assert [word for word in words if word not in message] == [], message


def test_only_close_names_are_suggested(file: Path) -> None:
    assert refused(env={"PAGETIER_DISK_AHEAD": "0.1"}) == 'unknown variable PAGETIER_DISK_AHEAD (= "0.1")'
    for text in ("[disk]\nahead = 0.1", "[disk]\npatience = 1", "[store]\nexpiry = 1", "[cache]\nsize = 1"):
        file.write_text(text)
        assert "did you mean" not in refused(file)


def test_the_variable_of_the_engines_copy_configuration_is_ignored() -> None:
    assert load(None, {"PAGETIER_COPY_CONFIG": "/etc/x.toml"}, {}).name == "pagetier"


def test_bad_flags_are_refused() -> None:
    assert refused(arena_size="1X").startswith("flag --arena-size: ")
    assert "unknown flag" in refused(arena_siez="1G")


def test_a_value_that_is_overridden_is_validated_too(file: Path) -> None:
    file.write_text('[arena]\nsize = "lots"')
    assert '"lots"' in refused(file, arena_size="1G")


def test_a_conflict_of_two_settings_names_both_and_their_sources(file: Path) -> None:
    file.write_text('[arena]\nframe_size = "2MiB"\n')
    message = refused(file, {"PAGETIER_ARENA_SIZE": "1MiB"})
    assert "arena.size = 1MiB (variable PAGETIER_ARENA_SIZE)" in message
    assert f"arena.frame_size = 2MiB ({file}: arena.frame_size)" in message
    message = refused(evict_low="0.5")
    assert "evict.low = 0.5 (flag --evict-low)" in message
    assert "evict.high = 0.01 (default)" in message
    assert "frames" in refused(arena_size="16TiB", arena_frame_size="4096")


def test_lists_and_a_closed_socket_do_not_fit_the_authorization_by_the_socket(file: Path) -> None:
    file.write_text('[access]\nauthorize_by = "socket"\n')
    by = f"access.authorize_by = socket ({file}: access.authorize_by)"
    for key in ("users", "groups", "watch_users", "watch_groups"):
        message = refused(file, {f"PAGETIER_ACCESS_{key.upper()}": "7-8"})
        assert f"access.{key} = 7-8 (variable PAGETIER_ACCESS_{key.upper()}) has no effect: {by} lets" in message
    message = refused(file, access_socket_mode="0600")
    assert (
        f"access.socket_mode = 0600 (flag --access-socket-mode) keeps out every user that {by} would let in" in message
    )
    assert load(file, {}, {"access_users": ""}).access.authorize_by == "socket"


def test_metrics_cannot_use_the_control_socket(file: Path) -> None:
    (file.parent / "link").symlink_to(file.parent)
    socket, same = file.parent / "p.sock", file.parent / "link/p.sock"
    file.write_text(f'socket = "{socket}"\n')
    for path in (socket, same):
        message = refused(file, metrics_listen=str(path))
        assert (
            f"metrics.listen = {path} (flag --metrics-listen) is also the control socket, socket = {socket} ("
            in message
        )
    assert load(file, {}, {"metrics_listen": str(file.parent / "m.sock")}).socket == socket


def test_a_disk_needs_a_folder_and_a_size(file: Path) -> None:
    file.write_text('disk.path = "/var/cache/x"\n')
    assert f"disk.path = /var/cache/x ({file}: disk.path) needs a size: set disk.size" in refused(file)
    assert "disk.size = 1GiB (flag --disk-size) needs a folder: set disk.path" in refused(disk_size="1GiB")
    assert '"x/y" is not an absolute path' in refused(disk_path="x/y", disk_size="1GiB")
    assert load(file, {"PAGETIER_DISK_PATH": "", "PAGETIER_DISK_SIZE": "0"}, {}).disk.devices == ()


def test_several_devices(file: Path) -> None:
    two = (Path("/n0/p"), Path("/n1/p"))
    file.write_text('[disk]\npath = ["/n0/p", "/n1/p"]\nsize = "1TiB"\n')
    assert load(file, {}, {}).disk.devices == tuple(DeviceOptions(path, 1 << 40, 4, "files") for path in two)
    file.write_text('[disk]\npath = ["/n0/p", "/n1/p"]\nsize = ["1TiB", "2TiB"]\n')
    assert [device.size for device in load(file, {}, {}).disk.devices] == [1 << 40, 2 << 40]
    given = load(None, {"PAGETIER_DISK_PATH": "/n0/p, /n1/p", "PAGETIER_DISK_SIZE": "1G,2G"}, {}).disk
    assert (given.path, given.total_size) == (two, 3 << 30)
    assert load(file, {}, {"disk_path": "/with, comma", "disk_size": "1G"}).disk.path == (Path("/with, comma"),)
    assert "disk.size = 1GiB,2GiB,3GiB (flag --disk-size) has 3 sizes, and disk.path has 2 folders" in refused(
        file, disk_size="1G,2G,3G"
    )
    assert '"1G,0" has a size of 0: leave its folder out of disk.path' in refused(file, disk_size="1G,0")
    for shared in ("/n0/p,/n0/./p", "/n0/p,/n0/p/q"):
        assert "twice, or one folder in another: each needs its own" in refused(file, disk_path=shared)
    many = ",".join(f"/n{number}" for number in range(DISK_DEVICES + 1))
    assert f"has too many folders: at most {DISK_DEVICES}" in refused(file, disk_path=many, disk_size="1G")


def test_a_disk_size_that_is_impossible_is_rejected(file: Path) -> None:
    file.write_text('[disk]\npath = "/var/cache/x"\nsize = "1MiB"\n')
    assert f"disk.size = 1MiB ({file}: disk.size) has no room for a page in each environment" in refused(file)
    assert "at least 1MiB for 2 environments of frames of 4KiB" in refused(
        file, arena_frame_size="4KiB", disk_environments="2", disk_size="500KiB"
    )
    assert load(file, {}, {"arena_frame_size": "4KiB", "disk_environments": "2"}).disk.size == (1 << 20,)
    assert "can be mapped: at most 64TiB" in refused(file, disk_size="65TiB")
    assert "more frames of 4KiB than the index can have pages" in refused(
        file, arena_frame_size="4KiB", disk_size="8TiB", index_entries="0"
    )
    flags = {"arena_frame_size": "4KiB", "disk_size": "8TiB", "index_entries": "1000000"}
    assert load(file, {}, flags).entries == 1_000_000


@settings(deadline=None)  # it resolves user names
@given(st.text(alphabet=string.printable, max_size=30))
def test_no_text_escapes_as_another_error(text: str) -> None:
    for field in fields():
        try:
            load(None, {field.variable: text}, {})
        except ConfigError as error:
            assert field.variable in str(error) or "default" in str(error)


def test_a_fleet_that_cannot_be_opened_is_refused_without_its_secrets() -> None:
    assert "no store that pagetier knows: write s3://" in refused(remote_url="ftp://host/x")
    assert "an absolute path: write file:///mnt/pages" in refused(remote_url="file://mnt/pages")
    assert "set remote.key_file, or remote.trusted" in refused(remote_url="mooncake://10.0.0.1:50051")
    assert load(None, {}, {"remote_url": "mooncake://10.0.0.1:50051", "remote_trusted": "yes"}).remote.url
    why = refused(remote_url="s3://me:secret@bucket/x")
    assert "password" in why and "secret" not in why and "s3://bucket/x" in why
    assert "remote.ask_timeout = 3s" in refused(remote_ask_timeout="3s")
