"""Whether this host is ready for the daemon: memory, huge pages, limits, kernel. Nothing is changed."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator

from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.capacity import fit, need_of
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import SO_PEERPIDFD
from pagetier.shm.segment_files import survey
from pagetier.shm.units import format_size

_MADV_POPULATE_WRITE = 23


def check_shared_memory(host: Host) -> Result:
    """/dev/shm itself."""
    shm = host.shared_memory()
    if not shm.writable:
        return problem("/dev/shm", "missing, or this user may not write there: mount -t tmpfs tmpfs /dev/shm")
    if shm.size is None or shm.free is None:
        return ok("/dev/shm", "without a limit of its own")
    return ok("/dev/shm", f"{format_size(shm.free)} of {format_size(shm.size)} free")


def check_room(config: Config, host: Host) -> Result:
    """Whether the arena fits; for when no daemon has it yet."""
    held = sum(found.nbytes for found in survey() if found.name == config.name)
    verdict = fit(host, need_of(config, held))
    return (ok if verdict.fits else problem)("arena", verdict.explain())


def check_huge_pages(config: Config, host: Host) -> Result:
    """Whether advice would be taken; a problem of speed only."""
    obstacle = host.huge_pages().obstacle
    if config.arena.huge_pages == "never":
        possible = f"and can not be had: {obstacle}" if obstacle else 'and can be had: arena.huge_pages = "advise"'
        return ok("huge pages", f"not asked for, {possible}")
    return warning("huge pages", obstacle) if obstacle else ok("huge pages", "the arena gets them")


def check_locked_memory(config: Config, host: Host) -> Result:
    """What this user may lock: drivers that count pinned memory against it refuse to pin the arena."""
    limit = host.locked().soft
    if limit is None:
        return ok("memlock", "no limit")
    if limit >= config.arena.size:
        return ok("memlock", f"{format_size(limit)}, enough for the arena")
    return warning(
        "memlock",
        f"{format_size(limit)}, the arena has {format_size(config.arena.size)}: a driver that counts what it pins, as"
        " RDMA's do, will refuse it to its engines: ulimit -l unlimited, or LimitMEMLOCK=infinity in their unit",
    )


def check_kernel() -> Iterator[Result]:
    """What the daemon needs of Linux."""
    yield _pidfd()
    yield _peer_pidfd()
    yield _populate()


def _pidfd() -> Result:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return problem("pidfd", f"{error.strerror}: deaths of engines can not be seen; Linux 5.3 is needed")
    return ok("pidfd", "deaths of engines are seen at once")


def _peer_pidfd() -> Result:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return warning("SO_PEERPIDFD", "not in this kernel (Linux 6.5): pids of engines are looked up instead")
    return ok("SO_PEERPIDFD", "who connects is known for certain")


def _populate() -> Result:
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as memory:
            memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        return problem("populating", f"{error.strerror}: memory can not be taken ahead; Linux 5.14 is needed")
    return ok("populating", "memory can be taken ahead")
