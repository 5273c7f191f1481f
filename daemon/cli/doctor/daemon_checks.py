"""Whether the daemon can be reached and is sound, and what dead ones have left. Nothing is changed."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from pagetier.daemon.cli.connect import Daemon, Refused
from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.cli.snapshot import Snapshot, take_snapshot
from pagetier.daemon.config.schema import AccessOptions, Config, replaced
from pagetier.daemon.host.capacity import geometry_of, serves, short_index
from pagetier.daemon.server.control_socket import locked_out
from pagetier.shm.geometry import Geometry
from pagetier.shm.protocol import Check, Findings
from pagetier.shm.segment_files import FoundSegments, survey, user_name
from pagetier.shm.units import format_size


def check_folder(folder: Path) -> Result:
    """The socket's folder: who else could put a socket of his own there."""
    try:
        found = folder.stat()
    except OSError as error:
        return _missing_folder(folder, error)
    if found.st_uid not in (0, os.geteuid()) and _anybody_may_make(folder):
        return problem("folder", f"{folder} belongs to user {user_name(found.st_uid)}: remove it or set another socket")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return problem("folder", f"others may replace what is in {folder}: chmod go-w {shlex.quote(str(folder))}")
    return ok("folder", f"{folder} of user {user_name(found.st_uid)}")


def _anybody_may_make(folder: Path) -> bool:
    """Whether it lies where everybody makes folders, as the default for users does: there it may be an intruder's."""
    return bool(folder.parent.stat().st_mode & stat.S_IWOTH)


def _missing_folder(folder: Path, error: OSError) -> Result:
    there = next(above for above in folder.parents if above.exists())
    if isinstance(error, FileNotFoundError) and os.access(there, os.W_OK | os.X_OK):
        return ok("folder", f"{folder} is not there yet: pagetierd makes it")
    return problem("folder", f"{folder}: {error.strerror}: make it for the daemon's user, or set another socket")


def check_socket(path: Path, access: AccessOptions) -> Iterator[Result]:
    """The socket, where there is one: its kind, and who may open it."""
    try:
        found = path.lstat()
    except OSError:
        return
    whose = f"{path} of user {user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"
    if not stat.S_ISSOCK(found.st_mode):
        yield problem("socket", f"{path} is no socket: remove it, or set another socket")
    elif not os.access(path, os.W_OK):
        yield problem("socket", f"{whose}, is closed to this user: see access.users and access.socket_mode")
    elif trouble := locked_out(found, access):
        yield warning("socket", trouble)
    else:
        yield ok("socket", whose)


_NAMESPACES_FULL = 0.8
_NAMESPACES_ADVICE = (
    "a full table drops those that were not used for index.namespace_idle, and where there are none, stores of new ones"
    " are rejected: raise index.namespaces, or lower index.namespace_idle"
)
_REFUSED = "a restart with it is refused while pages are warm"
_MADE_ANEW = "a restart with it makes the memory anew, as no page is in it now, and is refused once there is one"
_DROPS = "a stop and a start (systemctl stop, systemctl start) drop what is in memory"


def check_daemon(daemon: Daemon, config: Config) -> Iterator[Result]:
    """A daemon that answers: what it has, whether a restart would keep it, and whether its index is sound."""
    snapshot = take_snapshot(daemon.observer)
    memory, clients = snapshot.tiers.memory, len(snapshot.clients)
    has = f"{memory.pages:,} pages in {format_size(memory.used)} of {format_size(memory.cap)}, {clients} clients"
    yield ok("daemon", f"answers: {snapshot.daemon.build}, {has}")
    have = Geometry.of(daemon.observer.header())
    if not serves(have, config):
        differ = f"has {_told(have)}, this configuration {_told(geometry_of(config))}"
        yield warning("restart", f"the daemon {differ}: {_REFUSED if memory.pages else _MADE_ANEW}; {_DROPS}")
    elif short := short_index(have, _with_disk_of(snapshot, config)):
        yield warning("index", short)
    yield _namespaces(snapshot)
    yield from _integrity(daemon)


def _namespaces(snapshot: Snapshot) -> Result:
    """How full the table of namespaces is; records without pages are used again at once, and do not count."""
    taken = sum(1 for space in snapshot.namespaces if space.pages or space.disk_pages)
    most = snapshot.daemon.namespaces
    full = f"{taken:,} of {most:,} namespaces have pages"
    if taken < _NAMESPACES_FULL * most:
        return ok("namespaces", full)
    return warning("namespaces", f"{full}: {_NAMESPACES_ADVICE}")


def _integrity(daemon: Daemon) -> Iterator[Result]:
    """A walk costs the daemon time: it is not made for who may only look."""
    try:
        findings = daemon.ask(Check(1), Findings).findings
    except Refused as refused:
        yield warning("integrity", f"not looked at, as the daemon refuses: {refused.reason}")
        return
    for finding in findings:
        yield problem("integrity", f"{finding}: {_DROPS}, without systemd pagetierd --fresh; report it, please")
    if not findings:
        yield ok("integrity", "every page, frame and list was walked")


def _with_disk_of(snapshot: Snapshot, config: Config) -> Config:
    """With the disk as large as it is now, or as it is going to be."""
    return replaced(config, {"disk.size": max(config.disk.size, snapshot.disk.cap)})


def _told(geometry: Geometry) -> str:
    arena = format_size(geometry.frames * geometry.frame_bytes)
    frame = format_size(geometry.frame_bytes)
    return f"an arena of {arena} in frames of {frame}, {geometry.entries:,} entries, {geometry.spaces:,} namespaces"


def check_leftovers() -> Iterator[Result]:
    """Segments in /dev/shm without a daemon: memory that nobody uses until one takes them over."""
    left = [found for found in survey() if not found.lives]
    for found in left:
        yield warning("leftovers", _leftover(found))
    if not left:
        yield ok("leftovers", "no segments without a daemon")


def _leftover(found: FoundSegments) -> str:
    name = shlex.quote(found.name)
    whose = f"{format_size(found.nbytes)} of user {user_name(found.uid)} in segments {name} without a daemon"
    whose_turn = "the build that left them" if found.head.why_not else "the next daemon of that name"
    return (
        f"{whose}: {whose_turn} takes them over; pagetierd --name {name} --give-back, by that user or root, drops them"
    )
