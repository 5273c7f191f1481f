"""Checks the segments that a start would find, for `pagetierd --check`. Reads them, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import posix_ipc

from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.arena_fit import fit, geometry_of, need_of, serves
from pagetier.daemon.host.host import Host
from pagetier.daemon.running_daemon import holder_of
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import Observer, ShmError
from pagetier.shm.geometry import Geometry
from pagetier.shm.index_header import Head, head_of
from pagetier.shm.segment_files import (
    KINDS,
    is_locked,
    observe_and_close,
    open_segment,
    owner_of,
    survey,
    user_name,
)
from pagetier.shm.segments import Leftovers, UnfitError
from pagetier.shm.units import spell_size

_FOLDER: Final = Path("/dev/shm")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FoundDaemon(msgspec.Struct, frozen=True):
    """The running daemon of a name.

    Attributes:
        pid: Its PID; 0 if that cannot be seen from here.
        folders: The folders of its disk tier that are open.
    """

    pid: int
    folders: frozenset[str]


class FoundIndex(msgspec.Struct, frozen=True):
    """The index under a name.

    Attributes:
        head: Its first bytes.
        reader: Reads it; None if this build cannot.
        damage: Why this build cannot, although the format is its own.
        daemon: The daemon that uses it; None if there is none.
    """

    head: Head
    reader: Observer | None
    damage: str
    daemon: FoundDaemon | None


def find_index(name: str) -> FoundIndex | None:
    """Returns the index under a name; None if there is none.

    Raises:
        ShmError: It belongs to another user. Root may look at that of every user.
    """
    if owner_of(name) is None:
        return None
    with suppress(FileNotFoundError, posix_ipc.ExistentialError):  # it has just been removed
        if os.geteuid():
            os.close(open_segment(name, "index", read_only=True))
        index = os.open(_FOLDER / f"{name}.index", _READ)
        try:
            return _read(name, index)
        finally:
            os.close(index)
    return None


def _read(name: str, index: int) -> FoundIndex:
    head, reader, damage = head_of(index), None, ""
    if head.ours and not head.unusable_reason:
        try:
            reader = observe_and_close([os.open(_FOLDER / f"{name}.{kind}", _READ) for kind in ("index", "locks")])
        except FileNotFoundError:
            pass  # an interrupted removal: the next daemon completes it
        except ShmError as error:
            damage = str(error)
    return FoundIndex(head, reader, damage, _daemon(index, reader) if is_locked(index) else None)


def _daemon(index: int, reader: Observer | None) -> FoundDaemon:
    devices = read_status(reader).disk.devices if reader is not None else ()
    folders = frozenset(device.folder for device in devices if device.standing is Standing.OPEN)
    return FoundDaemon(holder_of(os.fstat(index)), folders)


def check_segments(
    config: Config, host: Host, found: FoundIndex | None, leftovers: Leftovers = Leftovers.ADOPT
) -> Iterator[str]:
    """Yields remarks for people, after all checks.

    Raises:
        UnfitError: A start would refuse the pages that an earlier daemon has left.
        ShmError: The arena does not fit, or segments cannot be created.
    """
    refusal = _refusal(config, found) if found is not None else ""
    if refusal and leftovers is Leftovers.ADOPT and found is not None and found.daemon is None:
        raise UnfitError(f"segments {config.name!r} {refusal}{_way_to_keep(config, found)}")
    reader = found.reader if found is not None else None
    if reader is None or not serves(Geometry.of(reader.header()), config):
        _require_room(config, host)
    if found is not None and found.daemon is not None:
        yield from _beside(found.daemon, refusal, _stop_and_start(config, found))
    yield from _whose(config.name)


def _require_room(config: Config, host: Host) -> None:
    in_use = sum(found.nbytes for found in survey() if found.name == config.name)
    verdict = fit(host, need_of(config, in_use))
    if not verdict.fits:
        raise ShmError(verdict.explain())
    shm = host.shared_memory()
    if not shm.writable:
        raise ShmError(f"{shm.path} is missing or read-only, or this user may not write there: mount a tmpfs there")


def _refusal(config: Config, found: FoundIndex) -> str:
    """Returns why a start would not adopt the segments and would not discard them either; or ""."""
    if found.head.unfinished or not all((_FOLDER / f"{config.name}.{kind}").exists() for kind in KINDS):
        return ""
    if found.reader is None:
        return found.head.unusable_reason or f"are corrupt: {found.damage}"
    header = found.reader.header()
    if header.closed or not header.pages or serves(Geometry.of(header), config):
        return ""
    have, wanted = _differences(Geometry.of(header), config)
    return f"contain pages and have {have}; the configuration asks for {wanted}"


def _differences(have: Geometry, config: Config) -> tuple[str, str]:
    """Returns the settings with which segments were made, as far as they differ, and those of the configuration."""
    arena = config.arena
    sizes = {
        "arena.size": (have.frames * have.frame_bytes, arena.whole_size),
        "arena.frame_size": (have.frame_bytes, arena.frame_size),
    }
    pairs = [(f"{name} = {spell_size(one)}", f"{name} = {spell_size(two)}") for name, (one, two) in sizes.items()]
    if config.index.entries:
        pairs.append((f"index.entries = {have.entries}", f"index.entries = {config.index.entries}"))
    differ = [pair for pair in pairs if pair[0] != pair[1]] or [(str(have), str(geometry_of(config)))]
    return ", ".join(one for one, _ in differ), ", ".join(two for _, two in differ)


def way_to_keep(config: Config) -> str:
    """Returns how to keep the pages that make a start fail; "" if they cannot be, or if that is not why it fails."""
    try:
        found = find_index(config.name)
    except (ShmError, OSError):
        return ""
    return _way_to_keep(config, found) if found is not None and _refusal(config, found) else ""


def _way_to_keep(config: Config, found: FoundIndex) -> str:
    """Returns how to keep the pages that are in memory only; "" if they cannot be."""
    if not config.disk.size or found.damage or not found.head.ours:
        return ""
    if _has_other_frames(config, found):
        return ": set the former value to keep them, since the new one loses what is in memory and on disk"
    former = "that build"
    if found.reader is not None:
        former, _ = _differences(Geometry.of(found.reader.header()), config)
    return f": start once with {former} and stop, which writes unwritten pages to disk, or discard them"


def _has_other_frames(config: Config, found: FoundIndex) -> bool:
    return found.reader is not None and Geometry.of(found.reader.header()).frame_bytes != config.arena.frame_size


def _stop_and_start(config: Config, found: FoundIndex) -> str:
    """Returns what a stop and a start do with the pages in memory of a running daemon, whose segments do not fit."""
    if _has_other_frames(config, found):
        return "stop, then start with --fresh, which loses what is in memory and on disk"
    return "stop and start instead, which writes unwritten pages to disk if there is a disk tier"


def _beside(daemon: FoundDaemon, refusal: str, instead: str) -> Iterator[str]:
    which = f"PID {daemon.pid}" if daemon.pid else "of another PID namespace"
    yield f"note: a daemon of this name ({which}) uses its segments, so that a second one would not start beside it"
    if refusal:
        yield (
            f"warning: a restart that keeps pages would be refused: the segments of the running daemon {refusal};"
            f" {instead}"
        )


def _whose(name: str) -> Iterator[str]:
    """Yields that segments belong to another user, which only root gets to see."""
    owner = owner_of(name)
    if owner not in (None, os.geteuid()):
        user = user_name(owner or 0)
        yield f"note: segments {name!r} belong to user {user}: a daemon of that user starts, one of root does not"
