"""Validates settings against each other, after each was validated alone."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.schema import MOST_FRAMES, Config
from pagetier.shm._core import DISK_DEVICES
from pagetier.shm.units import counted, format_size, spell_duration, spell_size
from pagetier.tiers.capacity import fits_a_frame, least_cap

# The tier's files are mapped by several processes, beside the arena: this is half of a process's addresses.
MOST_MAPPED: Final = 1 << 46


def wrong_disk_size(config: Config) -> str:
    """Returns why a disk tier of `disk.size` is impossible, to follow its name and value; or ""."""
    disk, frame = config.disk, config.arena.frame_size
    if not disk.size:
        return ""
    if len(disk.size) not in (1, len(disk.path)):
        return f"has {len(disk.size)} sizes, and disk.path has {counted(len(disk.path), 'folder')}"
    if disk.total_size > MOST_MAPPED:
        return f"is more than can be mapped: at most {spell_size(MOST_MAPPED)}"
    if not fits_a_frame(disk.store, min(disk.size), disk.environments, frame, disk.compress):
        least = least_cap(disk.store, disk.environments, frame, disk.compress)
        return f"is too small: at least {spell_size(least)} with arena.frame_size = {spell_size(frame)}"
    if not config.index.entries and config.arena.frames + disk.total_size // frame > MOST_FRAMES:
        return (
            f"has more frames of {spell_size(frame)} than the index can have pages ({MOST_FRAMES}): "
            "set a larger arena.frame_size, or index.entries"
        )
    return ""


def beyond_its_disk(disk: DeviceOptions, room: int) -> str:
    """Returns a warning if the file system has less room than the disk tier may take of it; or "".

    Args:
        disk: A device of the disk tier.
        room: Bytes of the file system that are free, and those that the tier takes already.
    """
    if disk.size <= room:
        return ""
    return (
        f"disk.size = {spell_size(disk.size)} is more than the file system of {disk.path} has for it "
        f"({format_size(room)} free, or in use by the tier): it will be full before the tier is"
    )


# Returns a setting and its value with their source, for messages.
Describe: TypeAlias = Callable[[str, str], str]


def conflicts(config: Config, describe: Describe) -> Iterator[str]:
    """Yields the conflicts between settings."""
    checks = (
        *(_check_arena, _check_disk, _check_remote),
        *(_check_quota, _check_access, _check_sockets, _check_http),
    )
    for check in checks:
        yield from check(config, describe)


def _check_arena(config: Config, describe: Describe) -> Iterator[str]:
    arena = config.arena
    size = describe("arena.size", spell_size(arena.size))
    frame = describe("arena.frame_size", spell_size(arena.frame_size))
    if not arena.frames:
        yield f"{size} has no room for one frame: {frame}"
    if arena.frames > MOST_FRAMES:
        yield f"{size} has more than {MOST_FRAMES} frames: {frame}"


def _check_disk(config: Config, describe: Describe) -> Iterator[str]:
    disk = config.disk
    sizes, folders = ",".join(map(spell_size, disk.size)), ",".join(map(str, disk.path))
    if disk.size and not disk.path:
        yield f"{describe('disk.size', sizes)} needs a folder: set disk.path"
    if disk.path and not disk.size:
        yield f"{describe('disk.path', folders)} needs a size: set disk.size"
    if len(disk.path) > DISK_DEVICES:
        yield f"{describe('disk.path', folders)} has too many folders: at most {DISK_DEVICES}"
    if shared := next(_nested(disk.path), None):
        yield f"{describe('disk.path', folders)} has {shared} twice, or one folder in another: each needs its own"
    if disk.compress == "on" and disk.store != "files":
        store = describe("disk.store", disk.store)
        yield f"{describe('disk.compress', disk.compress)} is impossible with {store}: set disk.store to files"
    if disk.path and (why := wrong_disk_size(config)):
        yield f"{describe('disk.size', sizes)} {why}"


def wrong_fleet(remote: RemoteOptions) -> str:
    """Returns why a fleet cannot be opened with these settings; or ""."""
    from pagetier.tiers.base import TierError
    from pagetier.tiers.fleet.fleet_options import check_options

    try:
        check_options(remote.fleet)
    except TierError as error:
        return str(error)
    return ""


def _check_remote(config: Config, describe: Describe) -> Iterator[str]:
    remote = config.remote
    if remote.url and (wrong := wrong_fleet(remote)):
        yield f"{describe('remote.url', re.sub('//[^/]*@', '//', remote.url))}: {wrong}"
    if remote.ask_timeout > remote.timeout:
        ask = describe("remote.ask_timeout", spell_duration(remote.ask_timeout))
        yield f"{ask} is more than {describe('remote.timeout', spell_duration(remote.timeout))}: lower it"


def _nested(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the folders that are others among these, or lie in them."""
    real = [Path(os.path.realpath(folder)) for folder in folders]
    for at, folder in enumerate(real):
        yield from (folders[at] for other in real[:at] + real[at + 1 :] if folder.is_relative_to(other))


def _check_quota(config: Config, describe: Describe) -> Iterator[str]:
    for quota in config.quota if config.arena.frames else ():
        if quota.arena.most * config.arena.frames < 1:
            frames = f"{config.arena.frames} frames of arena.size"
            yield f"{describe('quota', str(quota))} has a maximum of less than one of the {frames}: raise it"


def _check_access(config: Config, describe: Describe) -> Iterator[str]:
    access = config.access
    if access.authorize_by != "socket":
        return
    lists = {"users": access.users, "groups": access.groups}
    lists |= {"watch_users": access.watch_users, "watch_groups": access.watch_groups}
    by = describe("access.authorize_by", "socket")
    for key, ranges in lists.items():
        if ranges:
            given = describe(f"access.{key}", ",".join(map(str, ranges)))
            yield f"{given} has no effect: {by} lets every process attach that can open the socket; remove one of them"
    if not access.socket_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = describe("access.socket_mode", f"{access.socket_mode:04o}")
        yield f"{mode} keeps out every user that {by} would let in: set access.socket_mode to 0660 or 0666"


def _check_sockets(config: Config, describe: Describe) -> Iterator[str]:
    metrics = (config.metrics.listen,) if config.metrics.listen is not None else ()
    named = (("metrics.listen", metrics), ("http.listen", config.http.listen))
    for setting, path in ((setting, each.path) for setting, addresses in named for each in addresses):
        if path is not None and _is_same_place(path, config.socket):
            control = describe("socket", str(config.socket))
            yield f"{describe(setting, str(path))} is also the control socket, {control}: set another path"


def _check_http(config: Config, describe: Describe) -> Iterator[str]:
    ports = [address for address in config.http.listen if address.path is None]
    if ports and config.http.token_file is None:
        yield f"{describe('http.listen', str(ports[0]))} is a port, which needs a token: set http.token_file"


def _is_same_place(one: Path, other: Path) -> bool:
    """Returns whether two sockets would have the same path. /var/run and /run are the same folder."""
    return one.name == other.name and os.path.realpath(one.parent) == os.path.realpath(other.parent)
