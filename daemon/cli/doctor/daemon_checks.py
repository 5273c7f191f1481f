"""Checks whether the daemon can be reached and is sound, and what dead daemons have left. Changes nothing."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pagetier.daemon.cli.daemon_connection import Daemon, Refused
from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.config.fields import replaced
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.host.arena_fit import geometry_of, serves, short_index
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.listening_socket import another
from pagetier.daemon.running_daemon import holder_of
from pagetier.daemon.server.control_socket import locked_out
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm.geometry import Geometry
from pagetier.shm.protocol import Check, Findings
from pagetier.shm.segment_files import KINDS, FoundSegments, survey, user_name
from pagetier.shm.socket_path import closed_folder
from pagetier.shm.units import counted, format_size


def check_folder(folder: Path) -> Result:
    """Checks whether another user could replace the socket."""
    try:
        found = folder.stat()
    except OSError as error:
        return _missing_folder(folder, error)
    if found.st_uid not in (0, os.geteuid()) and _anyone_may_create(folder):
        whose = f"{folder} belongs to user {user_name(found.st_uid)}"
        return problem("folder", f"{whose}: remove it, or {another('socket')}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return problem("folder", f"other users can replace files in {folder}: chmod go-w {shlex.quote(str(folder))}")
    return ok("folder", f"{folder} of user {user_name(found.st_uid)}")


def _anyone_may_create(folder: Path) -> bool:
    """Returns whether every user may create folders beside it, as in the default for users: it may be an intruder's."""
    return bool(folder.parent.stat().st_mode & stat.S_IWOTH)


def _missing_folder(folder: Path, error: OSError) -> Result:
    if closed := closed_folder(folder / "socket"):
        return problem("folder", f"this user may not enter {closed}: run doctor as root or as the daemon's user")
    there = next(above for above in folder.parents if above.exists())
    if isinstance(error, FileNotFoundError) and os.access(there, os.W_OK | os.X_OK):
        return ok("folder", f"{folder} does not exist yet: pagetierd creates it")
    return problem("folder", f"{folder}: {error.strerror}: create it for the daemon's user, or {another('socket')}")


def check_socket(path: Path, access: AccessOptions) -> Iterator[Result]:
    """Checks the socket, if there is one: its type, and who may open it."""
    try:
        found = path.lstat()
    except OSError:
        return
    whose = f"{path} of user {user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"
    if not stat.S_ISSOCK(found.st_mode):
        yield problem("socket", f"{path} is not a socket: remove it, or {another('socket')}")
    elif not os.access(path, os.W_OK):
        yield problem("socket", f"{whose}: this user may not open it (see daemon below)")
    elif trouble := locked_out(found, access):
        yield warning("socket", trouble)
    elif access.authorize_by == "socket" and found.st_mode & stat.S_IWOTH and path.parent.stat().st_mode & stat.S_IXOTH:
        yield warning("socket", f"{whose}: {_OPEN_TO_ALL}")
    else:
        yield ok("socket", whose)


_OPEN_TO_ALL = (
    'every user of this host may attach, since access.authorize_by = "socket": set access.socket_mode = "0660", or'
    " close the folder to others"
)
_SHARED_MEMORY = Path("/dev/shm")
_MOST_LEFTOVERS = 3  # that get a line each
_NAMESPACES_FULL = 0.8
_NAMESPACES_ADVICE = (
    "a full table drops those that were not used for ten minutes, and rejects new ones if there are none: let engines"
    " use fewer namespaces (salts, LoRA adapters) at once"
)
_FASTER = "use a faster one, or none"
_HARDLY = 10  # times the tokens that were loaded, for those that were computed instead
_UNCHARGED = 1 / 8  # of the segments: the statistics of the kernel lag behind
_CHARGE_ADVICE = (
    "a container that was replaced while its pages were kept has left them there, and the limit of this one does not"
    " count them; a stop that does not keep pages, and a start, moves the charge"
)
_REFUSED = "a restart with it fails while pages are in memory"
_RECREATED = "a restart with it creates new segments, since memory has no pages now; it fails once there are some"
_ONCE_CONFIGURED = ", once this configuration has that disk.size: it has less than the running daemon"
_DROPS_DISK = "; with pages on disk that start needs --fresh, which discards them, too"
_DROPS = "a stop and a start (systemctl stop, systemctl start) discard what is in memory"


def unreachable(message: str, name: str) -> Result:
    """Reports that no daemon answers at a socket, and a daemon of the same name that may have another socket."""
    with suppress(OSError):
        if pid := holder_of((_SHARED_MEMORY / f"{name}.index").lstat()):
            other = f"process {pid} is a daemon of this name: name its socket with --socket, or set PAGETIER_SOCKET"
            return problem("daemon", f"{message}; {other}")
    return problem("daemon", message)


def check_daemon(daemon: Daemon, config: Config) -> Iterator[Result]:
    """Checks a daemon that answers: its state, whether a restart keeps its pages, and the integrity of its index."""
    snapshot = take_snapshot(daemon.observer)
    memory, clients = snapshot.tiers.memory, len(snapshot.clients)
    has = f"{memory.pages_text} in {format_size(memory.used)} of {format_size(memory.cap)}"
    phase = snapshot.daemon.phase_text
    yield ok("daemon", f"answers: {snapshot.daemon.build}, {phase}, {has}, {counted(clients, 'client')}")
    have = Geometry.of(daemon.observer.header())
    if not serves(have, config):
        lost = _DROPS_DISK if _empties_disk(snapshot, have, config) else ""
        differ = f"has {_described(have)}, this configuration asks for {_described(geometry_of(config))}"
        yield warning("restart", f"the daemon {differ}: {_REFUSED if memory.pages else _RECREATED}; {_DROPS}{lost}")
    elif short := short_index(have, larger := _with_disk_of(snapshot, config)):
        yield warning("index", short if larger is config else f"{short}{_ONCE_CONFIGURED}")
    if wasteful := snapshot.frame_advice:
        yield warning("frames", wasteful)
    yield _namespaces(snapshot)
    yield from slower_tiers(snapshot, config)
    yield from _unjudged(snapshot)
    yield from _integrity(daemon)


def _empties_disk(snapshot: Snapshot, have: Geometry, config: Config) -> bool:
    """Returns whether a folder of the running daemon's disk tier would get frames of another size."""
    shared = {Path(device.folder) for device in snapshot.disk.devices}.intersection(config.disk.path)
    return bool(shared) and have.frame_bytes != config.arena.frame_size


def slower_tiers(snapshot: Snapshot, config: Config) -> Iterator[Result]:
    """Names each tier from which engines hardly load anything, because computing is faster.

    They load from it until they have measured it, and now and then from a memory that is slow, to measure that.

    Yields:
        A warning about each.
    """
    lookups = snapshot.lookups
    if lookups.memory_slower_tokens > _HARDLY * lookups.memory_tokens:
        yield _slower("memory", lookups.memory_slower_tokens, "the model may be too small for a cache")
    if config.disk.path and lookups.disk_slower_tokens > _HARDLY * lookups.disk_tokens:
        yield _slower("disk", lookups.disk_slower_tokens, _FASTER)
    if config.remote.url and lookups.remote_slower_tokens > _HARDLY * lookups.remote_tokens:
        yield _slower("fleet", lookups.remote_slower_tokens, _FASTER)


def _slower(tier: str, tokens: int, advice: str) -> Result:
    computed = f"engines have computed {counted(tokens, 'token')} instead"
    return warning(f"{tier} speed", f"loading from {tier} is hardly ever faster than computing: {computed}: {advice}")


def check_charge(daemon: Daemon, config: Config, host: Host) -> Iterator[Result]:
    """Checks whether the daemon's control group is charged with the segments: the group that allocated memory is."""
    charged = host.shared_memory_charge(daemon.pid)
    nbytes = sum(found.nbytes for found in survey() if found.name == config.name)
    if charged is None or not nbytes:
        return
    if nbytes - charged <= nbytes * _UNCHARGED:
        yield ok("charge", f"the daemon's memory group is charged with the segments, {format_size(nbytes)}")
        return
    elsewhere = f"{format_size(nbytes - charged)} of the segments' {format_size(nbytes)}"
    yield warning("charge", f"{elsewhere} are swapped out or charged to another memory group: {_CHARGE_ADVICE}")


def _namespaces(snapshot: Snapshot) -> Result:
    """Checks how full the table of namespaces is. Records without pages are reused at once and do not count."""
    taken = len(snapshot.namespaces)
    most = snapshot.daemon.namespaces
    full = f"{taken:,} of {most:,} namespaces have pages"
    if taken < _NAMESPACES_FULL * most:
        return ok("namespaces", full)
    return warning("namespaces", f"{full}: {_NAMESPACES_ADVICE}")


def _unjudged(snapshot: Snapshot) -> Iterator[Result]:
    """Names the slots that are kept because nothing says whether their process lives."""
    for client in snapshot.clients:
        if client.unjudged:
            whose = f"slot {client.slot} ({client.name} of user {client.uid})"
            yield warning(
                "slots",
                f"{whose} and its pages are kept, since the daemon was restarted and nothing shows whether its process"
                f" lives: it attaches again by itself, or end it and run pagetier reclaim {client.slot}",
            )


def _integrity(daemon: Daemon) -> Iterator[Result]:
    """Checks the index. That takes the daemon's time, so the daemon rejects it from users that may only observe."""
    try:
        findings = daemon.ask(Check(1), Findings).findings
    except Refused as refused:
        yield warning("integrity", f"not checked, since the daemon rejected the request: {refused.reason}")
        return
    for finding in findings:
        yield problem("integrity", f"{finding}: {_DROPS} (without systemd: pagetierd --fresh); please report it")
    if not findings:
        yield ok("integrity", "all pages, frames and lists are consistent")


def _with_disk_of(snapshot: Snapshot, config: Config) -> Config:
    """Returns the configuration with the larger of the disk's configured and current devices."""
    if snapshot.disk.cap <= config.disk.total_size:
        return config
    devices = snapshot.disk.devices
    paths, sizes = (Path(device.folder) for device in devices), (device.cap for device in devices)
    return replaced(config, {"disk.path": tuple(paths), "disk.size": tuple(sizes)})


def _described(geometry: Geometry) -> str:
    arena = format_size(geometry.frames * geometry.frame_bytes)
    frame = format_size(geometry.frame_bytes)
    return f"an arena of {arena} in frames of {frame}, {geometry.entries:,} entries, {geometry.spaces:,} namespaces"


def check_leftovers() -> Iterator[Result]:
    """Reports segments in /dev/shm without a daemon: memory that is unused until a daemon takes it over."""
    left = [found for found in survey() if not found.lives]
    for uid in sorted({found.uid for found in left}):
        yield from _leftovers_of([found for found in left if found.uid == uid])
    closed = sorted(_closed_segments(_SHARED_MEMORY))[:_MOST_LEFTOVERS]
    yield from (warning("leftovers", text) for text in closed)
    if not left and not closed:
        yield ok("leftovers", "no segments without a daemon")


def _closed_segments(folder: Path) -> Iterator[str]:
    """Yields a line for segments that this user may not open and that no process is seen to have locked."""
    for index in folder.glob("*.index"):
        files = [index.with_suffix(f".{kind}") for kind in KINDS]
        with suppress(OSError):  # it has just been removed
            stats = [file.lstat() for file in files]
            if not os.access(index, os.R_OK) and _may_be_left(index.stem, stats) and not holder_of(index.lstat()):
                yield _closed_leftover(index.stem, stats)


def _may_be_left(name: str, stats: list[os.stat_result]) -> bool:
    """Returns whether these are segments. Any user may create files there, with any name."""
    return name.isprintable() and all(stat.S_ISREG(each.st_mode) for each in stats)


def _closed_leftover(name: str, stats: list[os.stat_result]) -> str:
    nbytes, user = format_size(sum(512 * each.st_blocks for each in stats)), user_name(stats[0].st_uid)
    whose = f"{nbytes} of user {user} in segments {shlex.quote(name)}, whose daemon, if there is one, is not seen here"
    release = f"pagetierd --name {shlex.quote(name)} --release-memory, as that user or root, releases what none uses"
    return f"{whose}: {release}"


def _leftovers_of(left: list[FoundSegments]) -> Iterator[Result]:
    """Reports the segments of one user: each, or all in one line if there are many."""
    if len(left) <= _MOST_LEFTOVERS:
        yield from (warning("leftovers", _leftover(found)) for found in left)
        return
    nbytes, user = format_size(sum(found.nbytes for found in left)), user_name(left[0].uid)
    names = " ".join(shlex.quote(found.name) for found in left)
    release = f"for name in {names}; do pagetierd --name $name --release-memory; done"
    found = f"{len(left)} segments of user {user} without a daemon, {nbytes}"
    heirs = "the next daemon of each name takes its pages over"
    yield warning("leftovers", f"{found}; {heirs}; names without one are released by: {release}")


def _leftover(found: FoundSegments) -> str:
    name = shlex.quote(found.name)
    whose = f"{format_size(found.nbytes)} of user {user_name(found.uid)} in segments {name} without a daemon"
    heir = "the build that created them" if found.head.unusable_reason else "the next daemon of that name"
    release = f"pagetierd --name {name} --release-memory, as that user or root, releases them"
    return f"{whose}: {heir} takes them over; {release}"
