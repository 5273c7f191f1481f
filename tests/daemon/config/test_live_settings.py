"""Tests which settings change at once, which wait for a restart, and that followers are called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.fields import replaced
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.live_settings import Changes, LiveSettings
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import AccessOptions, ArenaOptions, Config, EvictOptions, LogOptions

WITH_DISK = Config(disk=DiskOptions(path=(Path("/d"),), size=(1 << 30,)))


def test_live_settings_change_and_the_others_are_named() -> None:
    in_force, reported = LiveSettings(Config()), list[Config]()
    in_force.follow(reported.append)
    wanted = Config(
        name="other",
        arena=ArenaOptions(size=1 << 20),
        access=AccessOptions(users=(IdRange(7, 7),)),
        log=LogOptions(level="debug"),
    )
    changes = in_force.take(wanted)
    assert changes == Changes(("access.users = 7", "log.level = debug"), ("name", "arena.size"))
    assert str(changes).endswith("only a restart changes name; only a stop and a start change arena.size")
    assert (in_force.config.name, in_force.config.arena, in_force.config.log.level) == (
        "pagetier",
        ArenaOptions(),
        "debug",
    )
    assert reported == [in_force.config]


def test_a_list_that_becomes_empty_is_reported() -> None:
    assert LiveSettings(Config(access=AccessOptions(users=(IdRange(7, 7),)))).take(Config()).done == (
        "access.users = (none)",
    )


def test_without_changes_no_follower_is_called() -> None:
    in_force = LiveSettings(Config())
    in_force.follow(lambda config: pytest.fail("reported"))
    assert str(in_force.take(Config())) == "nothing changed"
    assert in_force.take(Config(name="x")).later == ("name",)


@pytest.mark.parametrize(
    "other",
    [
        Config(),
        replaced(WITH_DISK, {"disk.path": (), "disk.size": ()}),
    ],
)
def test_a_disk_tier_is_added_and_removed_by_a_restart_only(other: Config) -> None:
    for old, new in ((WITH_DISK, other), (other, WITH_DISK)):
        assert "disk.size" in LiveSettings(old).take(new).later
    assert LiveSettings(WITH_DISK).take(replaced(WITH_DISK, {"disk.size": (64 << 20,)})).done == (
        "disk.size = 64MiB (room for 60.0 MiB in 60 frames)",
    )
    two = {"disk.path": (Path("/d"), Path("/e")), "disk.size": (1 << 30, 2 << 30)}
    assert LiveSettings(WITH_DISK).take(replaced(WITH_DISK, two)).done[0] == "disk.path = /d,/e"


def test_resize_changes_sizes() -> None:
    in_force = LiveSettings(WITH_DISK)
    reported = in_force.resize({"disk.size": "3GiB", "evict.free": "0.3"})
    assert reported.done[0] == "evict.free = 0.3"
    assert re.fullmatch(r"disk.size = 3GiB \(room for 3.0 GiB in [0-9,]+ frames\)", reported.done[1])
    assert in_force.config.evict == EvictOptions(free=0.3)
    assert in_force.take(WITH_DISK).done[0] == "evict.free = 0.01"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"arena.size": "1GiB"}, "arena.size: cannot be resized; only disk.size, evict.free can"),
        ({"disk.size": "lots"}, 'resize: disk.size: "lots" is not a size'),
        ({"disk.size": "0"}, "disk.size: only a restart of the daemon adds or removes a disk tier"),
        ({"disk.size": "0 KiB", "evict.free": "0.5"}, "disk.size: only a restart of the daemon adds or removes"),
        (
            {"disk.size": "1MiB"},
            "disk.size = 1MiB (resize: disk.size) is too small: at least 6MiB with arena.frame_size",
        ),
        ({"disk.size": "100KiB"}, "at least 6MiB"),
        ({"disk.size": "9PiB"}, "is more than can be mapped: at most 64TiB"),
        ({"evict.free": "2"}, "is not a share"),
    ],
)
def test_an_invalid_resize_changes_nothing(texts: dict[str, str], words: str) -> None:
    in_force = LiveSettings(WITH_DISK)
    with pytest.raises(ConfigError) as caught:
        in_force.resize(texts)
    assert words in str(caught.value)
    assert in_force.config == WITH_DISK


def test_a_missing_disk_tier_cannot_be_resized() -> None:
    with pytest.raises(ConfigError, match=r"disk.size: only a restart"):
        LiveSettings(Config()).resize({"disk.size": "1GiB"})


def test_a_size_that_is_valid_only_after_a_restart_is_rejected() -> None:
    disk = DiskOptions(path=(Path("/d"),), size=(1 << 30,), environments=8)
    in_force = LiveSettings(Config(disk=disk))
    in_force.follow(lambda config: pytest.fail("reported"))
    with pytest.raises(ConfigError, match=r"is too small: at least .*; settings that need a restart"):
        in_force.take(Config(disk=structs.replace(disk, size=(8 << 20,), environments=1)))
    assert in_force.config.disk == disk
