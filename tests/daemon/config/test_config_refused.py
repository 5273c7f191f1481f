"""Wrong configurations are rejected: the message names the source, the setting, its value and what to write."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.loader import MOST_BYTES, ConfigError, fields, load
from pagetier.daemon.memory_release import name_meant
from pagetier.shm._core import DISK_DEVICES


def refused(path: Path | None = None, env: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env or {}, dict(flags or {}))
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pagetierd.toml"


def test_one_error_names_all_mistakes_of_all_sources(file: Path) -> None:
    file.write_text('sokcet = "/x"\n[arena]\nsize = "64 gigs"\nframe_size = "4KiB"\n[evict]\npolicy = "lfu"')
    variables = {"PAGETIER_LOG_LEVEL": "loud", "PAGETIER_X": "1"}
    found = refused(file, variables, {"disk.sizes": "1GiB", "disk.size": "1 gig"})
    first, *mistakes = found.splitlines()
    assert first == "7 mistakes:" and all(line.startswith("  ") for line in mistakes)
    named = ("sokcet", "arena.size", "evict.policy", *variables, "disk.sizes", "flag --disk-size")
    assert all(name in line for name, line in zip(named, mistakes, strict=True)), found


def test_all_conflicts_are_named_at_once(file: Path) -> None:
    file.write_text('[disk]\npath = "/x"\n[http]\nlisten = "127.0.0.1:1"\n[remote]\ntimeout = "1s"\nask_timeout = "2s"')
    first, disk, remote, http = refused(file).splitlines()
    assert first == "3 mistakes:"
    assert "set disk.size" in disk and "remote.ask_timeout" in remote and "set http.token_file" in http


def test_a_conflict_that_may_end_with_another_mistake_is_not_named(file: Path) -> None:
    """The others are: what is missing is not what was misspelt."""
    file.write_text('[disk]\npath = "/x"\nsize = "1 gig"\n[http]\nlisten = "127.0.0.1:1"')
    first, size, http = refused(file).splitlines()
    assert first == "2 mistakes:" and "disk.size" in size and "set http.token_file" in http
    file.write_text('[disk]\npath = "/x"\nsiez = "1GiB"')
    assert '"siez"' in refused(file) and "mistakes" not in refused(file)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('arena.size = "1GiB"\n[disk]\n[arena]\n', "move arena.size below it, as size"),
        ('[arena]\nsize = "1GiB"\n[arena]\n', "write its keys below the first one"),
        ('[disk]\narena.size = "1GiB"\n[arena]\n[arena]\n', "write its keys below the first one"),
    ],
)
def test_a_second_header_of_a_table_is_answered_with_the_place_of_the_keys(text: str, advice: str, file: Path) -> None:
    file.write_text(text)
    assert refused(file).endswith(f'"[arena]" begins a table again: {advice}')


# Values in TOML that a setting does not take; the message shows them as they were written.
VALUES = {
    "name": ['"a/b"', '""', '"é"'],
    "socket": ['"x.sock"'],
    "arena.size": [
        *('"8545*4096"', "4095", "-1", "true", "1979-05-27", '["1GiB", 2]', '{a = false, "b c" = 07:32:00}', "1.5"),
    ],
    "arena.frame_size": ["300000", "2048"],
    "arena.prefault": ['"popluate"'],
    "arena.huge_pages": ["false"],
    "remote.url": ['"/mnt/pages"'],
    "index.entries": ["-1", "4.0"],
    "evict.free": ["1", "nan", "-0.1", '"half"', '"500%"', '"5 percent"'],
    "disk.sync": ['"0s"'],
    "remote.timeout": ["[true]", '"0s"', "inf", "2020-01-01", '"99999999999d"'],
    "disk.stop_timeout": ["1e+300"],
    "access.authorize_by": ['"sokcet"'],
    "access.users": ['["no-such-user-here"]', "[4294967295]", "[true]", '["65536-"]', '["9-8"]', "0"],
    "access.groups": ['"0-4294967295"'],
    "access.watch_users": ['["a-b"]'],
    "access.socket_mode": ["660", '"0880"', '"0440"'],
    "access.socket_group": ['"7-8"'],
    "log.level": ['"WARN"', '["info"]'],
}
# Values that are too long to show, or of which only a part is at fault.
UNSHOWN = {
    "socket": [f'"/{"x" * 107}"', '"/a\\u0000b"'],
    "arena.size": ["0x" + "f" * 5000, "[" + "{a=" * 100 + "1" + "}" * 100 + "]"],
    "remote.timeout": ["1" + "0" * 400],
    "evict.free": ["1" + "0" * 400],
}


@pytest.mark.parametrize(("setting", "value"), [(name, one) for name, values in VALUES.items() for one in values])
def test_a_wrong_value_is_named_with_its_setting(setting: str, value: str, file: Path) -> None:
    file.write_text(f"{setting} = {value}")
    message = refused(file)
    assert message.startswith(f"{file}: {setting}")
    assert (value.strip("[]") if setting.startswith("access") else value) in message


@pytest.mark.parametrize(("setting", "value"), [(name, one) for name, values in UNSHOWN.items() for one in values])
def test_the_setting_of_a_value_that_cannot_be_shown_is_named(setting: str, value: str, file: Path) -> None:
    file.write_text(f"{setting} = {value}")
    assert refused(file).startswith(f"{file}: {setting}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Keys and tables that do not exist, and what is meant.
        ("arena_size = 1", ['"arena_size"', "= 1", "[arena]"]),
        ('size = "1GiB"', ["arena.size", "disk.size"]),
        ('[arena]\nsiez = "1G"', ['"siez"', "[arena]", '"1G"', '"size"']),
        ("[arena]\nframe-size = 4096", ['"frame-size"', '"frame_size"']),
        ("frame_size = 4096", ['"frame_size"', '"arena.frame_size"']),
        ("[log]\nsocket_mode = 1", ['"socket_mode"', "[log]", '"access.socket_mode"']),
        ("[aerna]\nsize = 1", ["[aerna]", '"arena"']),
        ("[ARENA]\nsize = 1", ['"arena"']),
        ("[zzz]", ["[zzz]", "tables are arena, ", ", quota"]),
        ("[arena.sub]", ["[arena.sub]"]),
        ("[arena.size]\nx = 1", ["arena.size"]),
        ("arena = 3", ["arena = 3", "[arena]"]),
        ("[[arena]]\nsize = 1", ["arena = "]),
        ("x = 0x" + "f" * 5000, ['"x"']),
        ("arena = 0x" + "f" * 5000, ["arena"]),
        ("arena.size" + ".a" * 5000 + " = 1", ["arena.size: "]),
        # Text that is not TOML, or at which the parser gives up.
        ("[arena]\nsize = = 3\n", ["line 2, column 8"]),
        ("[arena]\nsize =", ["end of document"]),
        ("[arena]\nsize = 1\n[arena]\n", ["line 3, column 7", '"[arena]"']),
        ('[arena]\nsize = "1GiB"\nsize = "2GiB"\n', ['size = "2GiB"']),
        ("# a line\u2028separator\n[arena]\nsize = 64GB\n", ['size = "64GB"']),
        ("[arena]\nsize = " + "9" * 5000, ["number"]),
        ("x = " + "[" * 3000 + "]" * 3000, ["brackets"]),
        ('access.users = "root,,root"', ["access.users", '""']),
        ('access.groups = "root,no-such-group"', ["access.groups", '"no-such-group"']),
    ],
)
def test_a_mistake_in_a_file_is_named_with_what_to_write(text: str, words: list[str], file: Path) -> None:
    file.write_text(text)
    message = refused(file)
    assert message.startswith(f"{file}: ")
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("PAGETIER_ARENA_SIEZ", "1G", "PAGETIER_ARENA_SIZE"),
        ("PAGETIER_CONFG", "/x", "PAGETIER_CONFIG"),
        ("PAGETIER_", "", "unknown variable PAGETIER_ "),
        ("PAGETIER_ARENA_SIZE", "1X", '"1X"'),
        ("PAGETIER_ARENA_SIZE", "", '""'),
        ("PAGETIER_SOCKET", "", '""'),
        ("PAGETIER_COPY_CONFG", "/etc/x.toml", '"PAGETIER_COPY_CONFIG"'),
        ("PAGETIER_SERVICE_HOST", "10.0.0.1", "enableServiceLinks"),
        ("PAGETIER_PORT_9464_TCP_ADDR", "10.0.0.1", "enableServiceLinks"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, word: str) -> None:
    message = refused(env={variable: value})
    assert variable in message and word in message


def test_a_bad_flag_is_named_and_so_is_a_value_that_a_flag_overrides(file: Path) -> None:
    assert refused(flags={"arena.size": "1X"}).startswith("flag --arena-size: ")
    assert 'unknown setting "arena.siez"; did you mean "arena.size"?' in refused(flags={"arena.siez": "1G"})
    file.write_text('[arena]\nsize = "lots"')
    assert '"lots"' in refused(file, flags={"arena.size": "1G"})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("evict.low", "it is evict.free now"),
        ("remote.prefix", "it is remote.url, ?prefix=... now"),
        ("match.share", "it is arena.process_share now"),
        ("advise.window", "it is no setting any more: remove it"),
        ("disk.environments", "it is no setting any more: remove it"),
    ],
)
def test_a_setting_of_an_earlier_build_is_answered_with_the_new_one(name: str, advice: str, file: Path) -> None:
    table, _, key = name.partition(".")
    assert advice in refused(flags={name: "1"})
    assert advice in refused(env={f"PAGETIER_{table}_{key}".upper(): "1"})
    for text in (f"[{table}]\n{key} = 1", f"{name} = 1"):
        file.write_text(text)
        assert advice in refused(file)


def test_only_close_names_are_suggested(file: Path) -> None:
    assert "did you mean" not in refused(env={"PAGETIER_DISK_AHEAD": "0.1"})
    for text in ("[disk]\nahead = 0.1", "[disk]\npatience = 1", "[access]\nexpiry = 1", "[cache]\nsize = 1"):
        file.write_text(text)
        assert "did you mean" not in refused(file)


def test_a_file_that_is_missing_binary_too_large_or_no_file_is_rejected_at_once(file: Path, tmp_path: Path) -> None:
    none = tmp_path / "none.toml"
    os.mkfifo(tmp_path / "fifo")
    for path in (none, tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        assert refused(path).startswith(f"{path}: ")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        assert name_meant(path, {}, {}) == "pagetier"
    assert str(none) in refused(env={"PAGETIER_CONFIG": str(none)})
    file.write_bytes('name = "x"\n# é'.encode("latin-1"))
    assert "UTF-8" in refused(file) and "line 2" in refused(file)
    file.write_text('name = "x"\n#'.ljust(MOST_BYTES, "#"))
    assert load(file, {}, {}).name == "x"
    file.write_text('name = "x"\n#'.ljust(MOST_BYTES + 1, "#"))
    assert refused(file).startswith(f"{file}: too large")


@pytest.mark.parametrize("name", ["../x", "a/b", "a b"])
def test_no_memory_is_released_under_a_name_that_no_daemon_can_have(name: str) -> None:
    for env, flags in (({"PAGETIER_NAME": name}, {}), ({}, {"name": name})):
        with pytest.raises(ConfigError, match="is not a name"):
            name_meant(None, env, flags)


NOT_UTF8 = os.fsdecode(b"/mnt/\xff")


@pytest.mark.parametrize("setting", ["socket", "disk.path", "remote.key_file", "http.listen", "http.token_file"])
def test_a_path_that_no_message_can_have_is_rejected(setting: str) -> None:
    found = refused(flags={setting: NOT_UTF8})
    assert setting.replace(".", "-") in found or setting in found
    assert "a name that is not UTF-8: rename it" in found


def test_a_file_whose_name_no_message_can_have_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"\xff.toml")
    file.touch()
    assert refused(file) == f"{file}: has a name that is not UTF-8: rename it"


def test_a_byte_order_mark_is_ignored(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf[arena]\nsize = "3MiB"\n')
    assert load(file, {}, {}).arena.size == 3 << 20


IN_4K = {"arena.frame_size": "4KiB"}
DISK = {"disk.path": "/var/cache/x", "disk.size": "1MiB"}
MANY = ",".join(f"/n{number}" for number in range(DISK_DEVICES + 1))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"arena.frame_size": "2MiB", "arena.size": "1MiB"}, ["arena.size = 1MiB", "arena.frame_size = 2MiB"]),
        ({"arena.size": "16TiB"} | IN_4K, ["frames"]),
        *(
            ({"access.authorize_by": "socket", f"access.{key}": "7-8"}, [f"access.{key} = 7-8", "access.authorize_by"])
            for key in ("users", "groups", "watch_users", "watch_groups")
        ),
        (
            {"access.authorize_by": "socket", "access.socket_mode": "0600"},
            ["access.socket_mode = 0600", "access.authorize_by"],
        ),
        ({"disk.path": "/var/cache/x"}, ["disk.path = /var/cache/x", "disk.size"]),
        ({"disk.size": "1GiB"}, ["disk.size = 1GiB", "disk.path"]),
        ({"disk.path": "x/y", "disk.size": "1GiB"}, ["disk-path", '"x/y"']),
        ({"disk.path": "/n0/p,/n1/p", "disk.size": "1G,2G,3G"}, ["disk.size = 1GiB,2GiB,3GiB", "disk.path"]),
        ({"disk.path": "/n0/p,/n1/p", "disk.size": "1G,0"}, ["disk-size", '"1G,0"', "disk.path"]),
        ({"disk.path": "/n0/p,/n0/./p", "disk.size": "1G"}, ["disk-path", "twice"]),
        ({"disk.path": "/n0/p,/n0/p/q", "disk.size": "1G"}, ["disk-path", "twice"]),
        ({"disk.path": MANY, "disk.size": "1G"}, ["disk-path", f"at most {DISK_DEVICES}"]),
        (DISK, ["disk.size = 1MiB", "arena.frame_size = 1MiB"]),
        (DISK | IN_4K | {"disk.size": "500KiB"}, ["disk.size", "at least 2MiB"]),
        (
            DISK | {"disk.size": "1GiB", "disk.store": "lmdb", "disk.compress": "on"},
            ["disk.compress = on", "disk.store = lmdb", "set disk.store to files"],
        ),
        (DISK | {"disk.size": "65TiB"}, ["disk.size", "at most 64TiB"]),
        (DISK | IN_4K | {"disk.size": "8TiB", "index.entries": "0"}, ["disk.size", "4KiB"]),
        ({"remote.url": "ftp://host/x"}, ["remote.url", "s3://"]),
        ({"remote.url": "file://mnt/pages"}, ["remote.url", "file:///mnt/pages"]),
        ({"remote.url": "mooncake://10.0.0.1:50051"}, ["remote.key_file", "trusted=yes"]),
        ({"remote.url": "file:///mnt?prefix="}, ["remote.url", '""', "not a name"]),
        ({"remote.url": "file:///mnt?buffers=1KiB"}, ["remote.url", '"1KiB"', "at least 1MiB"]),
        ({"remote.url": "file:///mnt?trusted=1"}, ["remote.url", "not one of no, yes"]),
        ({"remote.url": "file:///mnt?region=x"}, ["remote.url", "known are buffers, compress, prefix, trusted"]),
        ({"remote.url": "s3://me:secret@bucket/x"}, ["password", "s3://bucket/x"]),
        ({"remote.ask_timeout": "3s"}, ["remote.ask_timeout = 3s"]),
    ],
)
def test_settings_that_do_not_fit_each_other_are_all_named(flags: dict[str, str], words: list[str]) -> None:
    message = refused(None, {}, flags)
    assert [word for word in words if word not in message] == [], message
    assert "secret" not in message


@pytest.mark.parametrize(
    "flags",
    [
        {"access.authorize_by": "socket", "access.users": ""},
        {"disk.path": "", "disk.size": "0"},
        DISK | IN_4K | {"disk.size": "2MiB"},
        DISK | IN_4K | {"disk.size": "2MiB", "disk.compress": "on"},
        DISK | IN_4K | {"disk.size": "8TiB", "index.entries": "1000000"},
        {"remote.url": "mooncake://10.0.0.1:50051?trusted=yes"},
    ],
)
def test_settings_that_fit_each_other_are_taken(flags: dict[str, str]) -> None:
    assert load(None, {}, dict(flags)).arena.size == 1 << 30


def test_a_conflict_names_the_source_of_each_setting(file: Path) -> None:
    file.write_text('[arena]\nframe_size = "2MiB"\n')
    message = refused(file, {"PAGETIER_ARENA_SIZE": "1MiB"})
    assert "arena.size = 1MiB (variable PAGETIER_ARENA_SIZE)" in message
    assert f"arena.frame_size = 2MiB ({file}: arena.frame_size)" in message


def test_metrics_cannot_use_the_control_socket(file: Path) -> None:
    (file.parent / "link").symlink_to(file.parent)
    socket, same = file.parent / "p.sock", file.parent / "link/p.sock"
    file.write_text(f'socket = "{socket}"\n')
    for path in (socket, same):
        message = refused(file, flags={"metrics.listen": str(path)})
        assert f"metrics.listen = {path} (flag" in message and f"socket = {socket} (" in message
    assert load(file, {}, {"metrics.listen": str(file.parent / "m.sock")}).socket == socket


def test_several_devices(file: Path) -> None:
    two = (Path("/n0/p"), Path("/n1/p"))
    file.write_text('[disk]\npath = ["/n0/p", "/n1/p"]\nsize = "1TiB"\n')
    assert load(file, {}, {}).disk.devices == tuple(DeviceOptions(path, 1 << 40, 4, "files") for path in two)
    file.write_text('[disk]\npath = ["/n0/p", "/n1/p"]\nsize = ["1TiB", "2TiB"]\n')
    assert [device.size for device in load(file, {}, {}).disk.devices] == [1 << 40, 2 << 40]
    given = load(None, {"PAGETIER_DISK_PATH": "/n0/p, /n1/p", "PAGETIER_DISK_SIZE": "1G,2G"}, {}).disk
    assert (given.path, given.total_size) == (two, 3 << 30)
    assert load(file, {}, {"disk.path": "/with, comma", "disk.size": "1G"}).disk.path == (Path("/with, comma"),)


@settings(deadline=None)  # it resolves user names
@given(st.text(alphabet=string.printable, max_size=30))
def test_no_text_escapes_as_another_error(text: str) -> None:
    for field in fields():
        try:
            load(None, {field.variable: text}, {})
        except ConfigError as error:
            assert field.variable in str(error) or "default" in str(error)


@pytest.mark.parametrize(
    ("size", "has_hint"), [('"25"', True), ("25", True), ('"25B"', False), ('"2KiB"', False), ("0", False)]
)
def test_a_number_without_a_unit_that_is_too_small_says_that_it_is_in_bytes(
    file: Path, size: str, has_hint: bool
) -> None:
    file.write_text(f"[arena]\nsize = {size}\n")
    message = refused(file)
    assert "is too small: at least 4KiB" in message
    assert message.endswith("; a number without a unit is in bytes") is has_hint
