"""Tests the table of settings: its three sets of names, their precedence, and the meaning of values."""

from __future__ import annotations

import grp
import itertools
import os
import pwd
from pathlib import Path

import pytest

from pagetier.daemon.config.address import Address
from pagetier.daemon.config.disk_capacity import frames_of_disk
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import Config, ConfigReader, fields, load
from pagetier.daemon.config.quota import ShareRange, TenantQuota
from pagetier.tiers.worker_protocol import FleetOptions


def id_range(number: int) -> IdRange:
    return IdRange(number, number)


# One valid raw text for each setting, and its value.
TYPED = {
    "name": ("other-1", "other-1"),
    "socket": ("/tmp/x/y.sock", Path("/tmp/x/y.sock")),
    "arena.size": ("1.5G", 3 << 29),
    "arena.frame_size": ("2MiB", 2 << 20),
    "arena.prefault": ("lazy", "lazy"),
    "arena.process_share": ("0.5", 0.5),
    "arena.huge_pages": ("never", "never"),
    "arena.numa": ("interleave", "interleave"),
    "index.entries": ("123456", 123456),
    "evict.policy": ("lru", "lru"),
    "evict.keep_share": ("0.25", 0.25),
    "evict.free": ("0.25", 0.25),
    "quota": ("a*: arena 0.1-1", (TenantQuota("a*", ShareRange(0.1, 1.0)),)),
    "disk.path": ("/tmp/x/disk", (Path("/tmp/x/disk"),)),
    "disk.size": ("3GiB", (3 << 30,)),
    "disk.write": ("second", "second"),
    "disk.store": ("lmdb", "lmdb"),
    "disk.compress": ("on", "on"),
    "disk.budget": ("1.5T", 3 << 39),
    "disk.sync": ("1m", 60.0),
    "disk.stop_timeout": ("5s", 5.0),
    "remote.url": ("file:///mnt/pages", "file:///mnt/pages"),
    "remote.worker": ("service", "service"),
    "remote.key_file": ("/etc/pagetier/fleet.key", Path("/etc/pagetier/fleet.key")),
    "remote.write": ("never", "never"),
    "remote.rate": ("100MiB", 100 << 20),
    "remote.ask_timeout": ("20ms", 0.02),
    "remote.timeout": ("5s", 5.0),
    "access.authorize_by": ("socket", "socket"),
    "access.users": ("root, 1234,65536-131071", (id_range(0), id_range(1234), IdRange(65536, 131071))),
    "access.groups": ("root,77-79", (id_range(0), IdRange(77, 79))),
    "access.watch_users": ("root", (id_range(0),)),
    "access.watch_groups": ("7-77", (IdRange(7, 77),)),
    "access.socket_group": ("77", (77,)),
    "access.socket_mode": ("0600", 0o600),
    "log.level": ("debug", "debug"),
    "metrics.listen": ("[::1]:9464", Address(host="::1", port=9464)),
    "http.listen": ("/run/h.sock, [::1]:80", (Address(path=Path("/run/h.sock")), Address(host="::1", port=80))),
    "http.token_file": ("/etc/token", Path("/etc/token")),
}
# Settings that others require.
NEEDS = {"disk.path": "disk.size", "disk.size": "disk.path", "http.listen": "http.token_file"}


def value_of(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pagetierd.toml"


def test_the_table_of_settings_is_complete() -> None:
    assert {field.path for field in fields()} == set(TYPED)
    for names in zip(*((f.path, f.variable, f.flag, f.parameter) for f in fields()), strict=True):
        assert len(set(names)) == len(names)


def test_defaults() -> None:
    config = load(None, {"XDG_RUNTIME_DIR": "/run/user/7"}, {})
    assert (config.name, config.arena.size, config.arena.frame_size) == ("pagetier", 1 << 30, 1 << 20)
    assert (config.evict.free, config.disk.stop_timeout, config.store.reservation_timeout) == (0.01, 30.0, 60.0)
    assert (config.access.socket_mode, config.access.users, config.access.groups) == (0o660, (), ())
    assert config.socket.is_absolute()
    assert config.entries == config.arena.frames == 1024


@pytest.mark.parametrize("path", TYPED)
def test_each_setting_from_file_variable_and_flag(path: str, file: Path) -> None:
    raw, typed = TYPED[path]
    needed = NEEDS.get(path, path)
    given = {path: raw, needed: TYPED[needed][0]}
    named = {field.path: field for field in fields()}
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    flags: dict[str, str | None] = dict(given)
    env = {named[name].variable: value for name, value in given.items()}
    for config in (load(file, {}, {}), load(None, env, {}), load(None, {}, flags)):
        assert value_of(config, path) == typed
        assert value_of(load(None, {}, {}), path) != typed


def test_toml_numbers_and_lists_are_accepted(file: Path) -> None:
    file.write_text(
        """
        [arena]
        size = 1_048_576
        frame_size = 0x1000
        [index]
        entries = 7
        [evict]
        free = 0
        keep_share = 0.25
        [disk]
        stop_timeout = 1.5
        [access]
        users = ["root", 1234, "1234", 0, "2000-2999"]
        groups = []
        """
    )
    config = load(file, {}, {})
    assert (config.arena.size, config.arena.frame_size, config.index.entries) == (1 << 20, 4096, 7)
    assert (config.evict.free, config.evict.keep_share, config.disk.stop_timeout) == (0.0, 0.25, 1.5)
    assert (config.access.users, config.access.groups) == ((id_range(0), id_range(1234), IdRange(2000, 2999)), ())


@pytest.mark.parametrize(("in_file", "in_env", "in_flags"), list(itertools.product([False, True], repeat=3)), ids=str)
def test_flag_over_variable_over_file(in_file: bool, in_env: bool, in_flags: bool, file: Path) -> None:
    file.write_text('arena.size = "2GiB"' if in_file else "")
    env = {"PAGETIER_ARENA_SIZE": "3GiB"} if in_env else {}
    flags = {"arena.size": "4GiB" if in_flags else None}
    expected = 4 if in_flags else 3 if in_env else 2 if in_file else 1
    assert load(file, env, flags).arena.size == expected << 30


def test_sources_override_single_keys_and_not_whole_tables(file: Path) -> None:
    file.write_text('[arena]\nsize = "2GiB"\nprocess_share = 0.5\nnuma = "interleave"\n')
    arena = load(file, {"PAGETIER_ARENA_SIZE": "3GiB"}, {"arena.process_share": "0.75"}).arena
    assert (arena.size, arena.process_share, arena.numa) == (3 << 30, 0.75, "interleave")


def test_a_url_has_parameters_of_pagetier_beside_those_of_its_store() -> None:
    url = "s3://pages/x?endpoint=http://[::1]:9&prefix=mine&buffers=64MiB&trusted=yes&region=a%26b&compress=off"
    remote = load(None, {}, {"remote.url": url, "remote.timeout": "5s"}).remote
    assert remote.url == url
    assert remote.fleet == FleetOptions(
        url="s3://pages/x?endpoint=http://[::1]:9&region=a%26b",
        prefix="mine",
        trusted=True,
        timeout_s=5.0,
        buffers=64 << 20,
        compress="off",
    )
    assert load(None, {}, {"remote.url": "file:///p?prefix=a-b"}).remote.fleet == FleetOptions(
        url="file:///p", prefix="a-b"
    )


def test_the_file_can_be_named_by_a_variable(file: Path, tmp_path: Path) -> None:
    file.write_text('name = "named"')
    assert load(None, {"PAGETIER_CONFIG": str(file)}, {}).name == "named"
    other = tmp_path / "other.toml"
    other.write_text('name = "other"')
    assert load(other, {"PAGETIER_CONFIG": str(file)}, {}).name == "other"
    assert load(None, {"PAGETIER_CONFIG": ""}, {}).name == "pagetier"


def test_variables_without_the_prefix_and_that_of_the_engines_copies_are_ignored() -> None:
    engines = {"PAGETIER": "1", "PAGETIER_COPY_CONFIG": "/etc/x.toml"}
    others = {"PATH": "/bin", "PAGETIERX": "1", "pagetier_name": "no", **engines}
    assert load(None, others, {}).name == "pagetier"


def test_shares_and_the_arena_can_be_percentages() -> None:
    config = load(None, {}, {"evict.free": "1%", "arena.process_share": "50%", "arena.size": "25%"})
    assert (config.evict.free, config.arena.process_share) == (0.01, 0.5)
    assert config.arena.size == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def test_the_caller_gives_constants_and_the_values_of_what_is_not_given(file: Path) -> None:
    defaults = Config(name="of-caller", socket=Path("/a.sock"), disk=DiskOptions(environments=2, budget=7))
    assert ConfigReader(None, {}, {}, defaults).read() == defaults
    file.write_text("[disk]\nbudget = 9\n")
    disk = ConfigReader(file, {}, {}, defaults).read().disk
    assert (disk.environments, disk.budget) == (2, 9)


def test_an_empty_list_can_override_a_full_one(file: Path) -> None:
    file.write_text("[access]\nusers = [5]")
    assert load(file, {"PAGETIER_ACCESS_USERS": ""}, {}).access.users == ()


def test_the_index_has_room_for_memory_and_disk() -> None:
    flags: dict[str, str | None] = {"arena.size": "1MiB", "arena.frame_size": "64KiB", "disk.path": "/x"}
    assert load(None, {}, flags | {"disk.size": "64MiB"}).entries == 16 + 1024
    compressed = load(None, {}, flags | {"disk.size": "64MiB", "disk.compress": "on"})
    assert compressed.entries == 16 + 1024 + 512
    assert frames_of_disk(compressed) * 3 // 2 <= compressed.entries, "no codec needs less than two thirds of a page"


def test_the_arena_is_rounded_down_to_whole_frames() -> None:
    config = load(None, {}, {"arena.size": "10000", "arena.frame_size": "4096"})
    assert (config.arena.frames, config.arena.whole_size, config.entries) == (2, 8192, 2)
    assert load(None, {}, {"index.entries": "99"}).entries == 99


def test_users_and_groups_of_this_host_by_name() -> None:
    """A user in a container may have no name."""
    user, group = pwd.getpwall()[-1], grp.getgrall()[-1]
    access = load(None, {}, {"access.users": user.pw_name, "access.groups": group.gr_name}).access
    assert (access.users, access.groups) == ((id_range(user.pw_uid),), (id_range(group.gr_gid),))
