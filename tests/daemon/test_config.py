"""Configuration: one table of settings under three sets of names, and what is refused, in words that help."""

from __future__ import annotations

import grp
import itertools
import os
import pwd
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.daemon.config import Config, ConfigError, fields, load

# One acceptable raw text for each setting and what it means.
TYPED = {
    "name": ("other-1", "other-1"),
    "socket": ("/tmp/x/y.sock", Path("/tmp/x/y.sock")),
    "arena.size": ("1.5G", 3 << 29),
    "arena.frame_size": ("2MiB", 2 << 20),
    "arena.prefault": ("lazy", "lazy"),
    "arena.threads": ("3", 3),
    "arena.huge_pages": ("advise", "advise"),
    "arena.numa": ("interleave", "interleave"),
    "index.entries": ("123456", 123456),
    "index.namespaces": ("7", 7),
    "evict.low": ("0.25", 0.25),
    "evict.high": ("0.5", 0.5),
    "store.expiry": ("250ms", 0.25),
    "store.quarantine": ("0s", 0.0),
    "disk.path": ("/tmp/x/disk", Path("/tmp/x/disk")),
    "disk.size": ("3GiB", 3 << 30),
    "disk.write": ("second", "second"),
    "disk.ahead": ("0.2", 0.2),
    "disk.budget": ("1.5T", 3 << 39),
    "disk.patience": ("7ms", 0.007),
    "disk.sync": ("1m", 60.0),
    "disk.environments": ("7", 7),
    "disk.stop": ("5s", 5.0),
    "access.users": ("root, 1234", (0, 1234)),
    "access.groups": ("root,77", (0, 77)),
    "access.socket_mode": ("0600", 0o600),
    "log.level": ("debug", "debug"),
}
# What a setting can not do without; low stays under high.
NEEDS = {"evict.low": "evict.high", "evict.high": "evict.low", "disk.path": "disk.size", "disk.size": "disk.path"}


def value_of(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def refused(path: Path | None = None, env: dict[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env or {}, flags)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pagetierd.toml"


def test_the_table_of_settings_is_whole() -> None:
    assert {field.path for field in fields()} == set(TYPED)
    for names in zip(*((f.path, f.variable, f.flag, f.parameter) for f in fields()), strict=True):
        assert len(set(names)) == len(names)


def test_defaults() -> None:
    config = load(None, {"XDG_RUNTIME_DIR": "/run/user/7"}, {})
    assert (config.name, config.arena.size, config.arena.frame_size) == ("pagetier", 1 << 30, 1 << 20)
    assert (config.evict.low, config.evict.high, config.store.expiry) == (0.005, 0.01, 60.0)
    assert (config.access.socket_mode, config.access.users, config.access.groups) == (0o660, (), ())
    assert config.socket.is_absolute()
    assert config.entries == config.arena.frames == 1024


@pytest.mark.parametrize("path", TYPED)
def test_each_setting_from_file_variable_and_flag(path: str, file: Path) -> None:
    raw, typed = TYPED[path]
    needed = NEEDS.get(path, path)
    given = {path: raw, needed: raw if path.startswith("evict") else TYPED[needed][0]}
    named = {field.path: field for field in fields()}
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    flags: dict[str, str | None] = {named[name].parameter: value for name, value in given.items()}
    env = {named[name].variable: value for name, value in given.items()}
    for config in (load(file, {}, {}), load(None, env, {}), load(None, {}, flags)):
        assert value_of(config, path) == typed
        assert value_of(load(None, {}, {}), path) != typed


def test_toml_numbers_and_lists_are_taken_too(file: Path) -> None:
    file.write_text(
        """
        [arena]
        size = 1_048_576
        frame_size = 0x1000
        threads = 2
        [evict]
        low = 0
        high = 0.5
        [store]
        expiry = 1.5
        [access]
        users = ["root", 1234, "1234", 0]
        groups = []
        """
    )
    config = load(file, {}, {})
    assert (config.arena.size, config.arena.frame_size, config.arena.threads) == (1 << 20, 4096, 2)
    assert (config.evict.low, config.evict.high, config.store.expiry) == (0.0, 0.5, 1.5)
    assert (config.access.users, config.access.groups) == ((0, 1234), ())


@pytest.mark.parametrize(("in_file", "in_env", "in_flags"), list(itertools.product([False, True], repeat=3)), ids=str)
def test_flag_over_variable_over_file(in_file: bool, in_env: bool, in_flags: bool, file: Path) -> None:
    file.write_text('arena.size = "2GiB"' if in_file else "")
    env = {"PAGETIER_ARENA_SIZE": "3GiB"} if in_env else {}
    flags = {"arena_size": "4GiB" if in_flags else None}
    expected = 4 if in_flags else 3 if in_env else 2 if in_file else 1
    assert load(file, env, flags).arena.size == expected << 30


def test_strength_is_by_key_and_not_by_table(file: Path) -> None:
    file.write_text('[arena]\nsize = "2GiB"\nthreads = 5\nnuma = "interleave"\n')
    arena = load(file, {"PAGETIER_ARENA_SIZE": "3GiB"}, {"arena_threads": "9"}).arena
    assert (arena.size, arena.threads, arena.numa) == (3 << 30, 9, "interleave")


def test_the_file_can_be_named_by_a_variable(file: Path, tmp_path: Path) -> None:
    file.write_text('name = "named"')
    assert load(None, {"PAGETIER_CONFIG": str(file)}, {}).name == "named"
    other = tmp_path / "other.toml"
    other.write_text('name = "other"')
    assert load(other, {"PAGETIER_CONFIG": str(file)}, {}).name == "other"
    assert load(None, {"PAGETIER_CONFIG": ""}, {}).name == "pagetier"


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
        ("arena = 3", ["arena = 3", "must be a table, [arena]"]),
        ("[[arena]]\nsize = 1", ["arena = ", "must be a table"]),
        ('[arena]\nsize = "8545*4096"', ["arena.size", '"8545*4096"']),
        ("[arena]\nsize = 4095", ["arena.size", "4095", "too small", "4KiB"]),
        ("[arena]\nsize = -1", ["arena.size", "-1"]),
        ("[arena]\nsize = true", ["arena.size", "True"]),
        ("[arena]\nsize = 1.5", ["arena.size", "1.5"]),
        ("[arena]\nframe_size = 300000", ["arena.frame_size", "300000", "power of two", "256KiB"]),
        ("[arena]\nframe_size = 2048", ["arena.frame_size", "2048", "too small"]),
        ('[arena]\nprefault = "popluate"', ["arena.prefault", '"popluate"', 'did you mean "populate"']),
        ("[arena]\nhuge_pages = false", ["arena.huge_pages", "false", "never, advise"]),
        ("[arena]\nthreads = -1", ["arena.threads", "-1", "between 0 and 1024"]),
        ("[arena]\nthreads = 4.0", ["arena.threads", "4.0", "whole number"]),
        ("[index]\nnamespaces = 0", ["index.namespaces", "0", "between 1 and"]),
        ("[evict]\nlow = nan", ["evict.low", "NaN"]),
        ("[evict]\nhigh = 1", ["evict.high", "1", "0 <= share < 1"]),
        ("[evict]\nlow = -0.1", ["evict.low", "-0.1"]),
        ('[evict]\nlow = "half"', ["evict.low", '"half"', "not a number"]),
        ('[store]\nexpiry = "0s"', ["store.expiry", '"0s"', "too short"]),
        ("[store]\nexpiry = inf", ["store.expiry", "inf"]),
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
        ("[access]\nusers = 0", ["access.users", "0", "not a list"]),
        ('[log]\nlevel = "WARN"', ["log.level", '"WARN"', "debug, info, warning, error"]),
        ('[log]\nlevel = ["info"]', ["log.level", "not one of"]),
        ("[store]\nexpiry = 2020-01-01", ["store.expiry", "2020"]),
    ],
)
def test_a_bad_file_is_refused_by_name_key_and_value(text: str, words: list[str], file: Path) -> None:
    file.write_text(text)
    message = refused(file)
    assert message.startswith(f"{file}: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[arena]\nsize = = 3\n", "line 2, column 8"),
        ("[arena]\nsize =", "line 2, column 7"),
        ('name = "abc', "line 1, column 12"),
        ("a = 1\n\n[b", "line 3, column 3"),
        ("[arena]\nsize = 1\n[arena]\n", "line 3, column 7"),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, place: str, file: Path) -> None:
    file.write_text(text)
    message = refused(file)
    assert message.startswith(f"{file}: ")
    assert place in message


def test_a_file_that_is_not_text_or_not_there(file: Path, tmp_path: Path) -> None:
    file.write_bytes('name = "x"\n# é'.encode("latin-1"))
    assert "not UTF-8 text (at line 2, column 3)" in refused(file)
    assert refused(tmp_path / "none.toml") == f"{tmp_path}/none.toml: can not be read: No such file or directory"
    assert "Is a directory" in refused(tmp_path)
    assert "none.toml" in refused(env={"PAGETIER_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PAGETIER_ARENA_SIEZ": "1G"}, ["PAGETIER_ARENA_SIEZ", '"1G"', 'did you mean "PAGETIER_ARENA_SIZE"']),
        ({"PAGETIER_CONFG": "/x"}, ["PAGETIER_CONFG", 'did you mean "PAGETIER_CONFIG"']),
        ({"PAGETIER_": ""}, ["unknown variable PAGETIER_ "]),
        ({"PAGETIER_ARENA_SIZE": "1X"}, ["variable PAGETIER_ARENA_SIZE", '"1X"']),
        ({"PAGETIER_ARENA_SIZE": ""}, ["variable PAGETIER_ARENA_SIZE", '""']),
        ({"PAGETIER_SOCKET": ""}, ["variable PAGETIER_SOCKET", '""']),
    ],
)
def test_bad_variables_are_refused(env: dict[str, str], words: list[str]) -> None:
    message = refused(env=env)
    for word in words:
        assert word in message


def test_variables_of_others_are_none_of_our_business() -> None:
    assert load(None, {"PATH": "/bin", "PAGETIERX": "1", "pagetier_name": "no"}, {}).name == "pagetier"


def test_the_copies_configuration_may_be_named_for_all_of_a_hosts_processes() -> None:
    assert load(None, {"PAGETIER_COPY_CONFIG": "/etc/x.toml"}, {}).name == "pagetier"
    assert 'did you mean "PAGETIER_COPY_CONFIG"' in refused(env={"PAGETIER_COPY_CONFG": "/etc/x.toml"})


def test_an_empty_list_can_override_a_full_one(file: Path) -> None:
    file.write_text("[access]\nusers = [5]")
    assert load(file, {"PAGETIER_ACCESS_USERS": ""}, {}).access.users == ()


def test_bad_flags_are_refused() -> None:
    assert refused(arena_size="1X").startswith("flag --arena-size: ")
    assert "unknown flag" in refused(arena_siez="1G")


def test_what_is_overridden_is_checked_all_the_same(file: Path) -> None:
    file.write_text('[arena]\nsize = "lots"')
    assert '"lots"' in refused(file, arena_size="1G")


def test_keys_that_do_not_go_together_name_both_and_where_they_came_from(file: Path) -> None:
    file.write_text('[arena]\nframe_size = "2MiB"\n')
    message = refused(file, {"PAGETIER_ARENA_SIZE": "1MiB"})
    assert "arena.size = 1MiB (variable PAGETIER_ARENA_SIZE)" in message
    assert f"arena.frame_size = 2MiB ({file}: arena.frame_size)" in message
    message = refused(evict_low="0.5")
    assert "evict.low = 0.5 (flag --evict-low)" in message
    assert "evict.high = 0.01 (default)" in message
    assert "frames" in refused(arena_size="16TiB", arena_frame_size="4096")


def test_a_disk_needs_a_folder_and_a_size(file: Path) -> None:
    file.write_text('disk.path = "/var/cache/x"\n')
    assert f"disk.path = /var/cache/x ({file}: disk.path) needs a size: set disk.size" in refused(file)
    assert "disk.size = 1GiB (flag --disk-size) needs a folder: set disk.path" in refused(disk_size="1GiB")
    assert '"x/y" is not an absolute path' in refused(disk_path="x/y", disk_size="1GiB")
    assert load(file, {"PAGETIER_DISK_PATH": "", "PAGETIER_DISK_SIZE": "0"}, {}).disk.path is None


def test_the_index_has_room_for_memory_and_disk() -> None:
    flags: dict[str, str | None] = {"arena_size": "1MiB", "arena_frame_size": "64KiB", "disk_path": "/x"}
    assert load(None, {}, flags | {"disk_size": "64MiB"}).entries == 16 + 1024


def test_the_arena_is_rounded_down_to_whole_frames() -> None:
    config = load(None, {}, {"arena_size": "10000", "arena_frame_size": "4096"})
    assert (config.arena.frames, config.arena.whole_size, config.entries) == (2, 8192, 2)
    assert load(None, {}, {"index_entries": "99"}).entries == 99


def test_users_and_groups_of_this_host_by_name() -> None:
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    access = load(None, {}, {"access_users": user, "access_groups": group}).access
    assert (access.users, access.groups) == ((os.getuid(),), (os.getgid(),))


@settings(deadline=None)  # looks up users
@given(st.text(alphabet=string.printable, max_size=30))
def test_no_text_escapes_as_another_error(text: str) -> None:
    for field in fields():
        try:
            load(None, {field.variable: text}, {})
        except ConfigError as error:
            assert field.variable in str(error) or "default" in str(error)
