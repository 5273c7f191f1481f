"""Checks whether this host is ready for the daemon: memory, huge pages, limits, kernel. Changes nothing."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator

from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.host.arena_fit import fit, need_of, too_large
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import SO_PEERPIDFD
from pagetier.daemon.status.huge_page_report import FEW_REMEDY, HugePageReport
from pagetier.shm.process import kernel_id_of
from pagetier.shm.segment_files import survey
from pagetier.shm.units import format_size
from pagetier.shm.user_namespace import STANDS_FOR_UNMAPPED, read_unmapped_ids

_MADV_POPULATE_WRITE = 23
_BY_PID = "engines are identified by their PIDs instead, so the daemon must see their processes"
_PINNING_DEVICES = ("proc/driver/nvidia", "dev/nvidiactl", "dev/kfd", "dev/infiniband")
_LASTING = (
    ", then stop and start the daemon; it lasts with this line in /etc/fstab, which systemd-remount-fs.service applies"
    " at boot: tmpfs /dev/shm tmpfs nosuid,nodev,huge=advise 0 0"
)


def check_shared_memory(host: Host) -> Result:
    """Checks whether /dev/shm can be used."""
    shm = host.shared_memory()
    if not shm.writable:
        return problem("/dev/shm", "missing, or this user may not write there: mount -t tmpfs tmpfs /dev/shm")
    if shm.flaw:
        return problem("/dev/shm", shm.flaw)
    if shm.size is None or shm.free is None:
        return ok("/dev/shm", "no size limit of its own")
    return ok("/dev/shm", f"{format_size(shm.free)} of {format_size(shm.size)} free")


def check_room(config: Config, host: Host) -> Result:
    """Checks whether the arena fits into memory, if no daemon has it yet."""
    in_use = sum(found.nbytes for found in survey() if found.name == config.name)
    verdict = fit(host, need_of(config, in_use))
    return (ok if verdict.fits else problem)("arena", verdict.explain())


def check_arena_size(config: Config, host: Host) -> Iterator[Result]:
    """Checks whether the arena leaves engines enough of the host's memory."""
    if why := too_large(host, config.arena.whole_size):
        yield warning("arena", why)


def check_huge_pages(config: Config, host: Host, report: HugePageReport) -> Result:
    """Checks whether huge pages are available, and whether a daemon that runs got them. They only affect speed."""
    pages = host.huge_pages()
    if config.arena.huge_pages == "never":
        possible = (
            f"not available: {pages.obstacle}" if pages.obstacle else 'available with arena.huge_pages = "advise"'
        )
        return ok("huge pages", f"not requested; {possible}")
    if pages.flaw:
        return warning("huge pages", "need a tmpfs in /dev/shm")
    if pages.obstacle:
        return warning("huge pages", f"{pages.obstacle}{_LASTING if pages.remount else ''}")
    if report.few:
        return warning("huge pages", f"only {report.text}: {FEW_REMEDY}")
    return ok("huge pages", report.text or "requested for arena and index")


def check_locked_memory(config: Config, host: Host) -> Result:
    """Checks how much memory this user may lock: drivers that count pinned memory cannot pin more."""
    limit = host.locked().soft
    if limit is None:
        return ok("memlock", "no limit")
    if limit >= config.arena.size:
        return ok("memlock", f"{format_size(limit)}, enough for the arena")
    if not any((host.root / device).exists() for device in _PINNING_DEVICES):
        return ok("memlock", f"{format_size(limit)}; no GPU and no RDMA device is here, so no driver pins the arena")
    return warning(
        "memlock",
        f"{format_size(limit)}, but the arena has {format_size(config.arena.size)}: drivers that count pinned memory,"
        " as for RDMA, cannot pin it in engines: set ulimit -l unlimited, or LimitMEMLOCK=infinity in their unit",
    )


def check_users(access: AccessOptions, host: Host) -> Result:
    """Checks whether a daemon in this user namespace can identify the users of engines."""
    unmapped = read_unmapped_ids(host.root)
    if unmapped.user is None:
        return ok("users", "all users of the host are mapped")
    if access.authorize_by == "socket":
        return ok("users", 'not all are mapped; access.authorize_by = "socket" needs none')
    return warning(
        "users",
        f"{unmapped.user} {STANDS_FOR_UNMAPPED}, and such engines are refused: run the daemon without one, or set"
        ' access.authorize_by = "socket"',
    )


def check_kernel(host: Host) -> Iterator[Result]:
    """Checks the features that the daemon needs of Linux."""
    yield _pidfd()
    yield _peer_pidfd(host)
    yield _populate()


def _pidfd() -> Result:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return problem(
            "pidfd", f"{error.strerror}: the death of an engine cannot be noticed; Linux 5.3 or newer is needed"
        )
    return ok("pidfd", "the death of an engine is noticed at once")


def _peer_pidfd(host: Host) -> Result:
    if _identifies_peers():
        return ok("SO_PEERPIDFD", "connecting processes are identified reliably, in all namespaces")
    return warning("SO_PEERPIDFD", f"needs Linux 6.9: {_BY_PID}{_hidden(host)}")


def _identifies_peers() -> bool:
    """Returns whether the kernel identifies a process that connects by its pidfd."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            pidfd = ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return False
        kernel_id = kernel_id_of(pidfd)
        os.close(pidfd)
        return kernel_id != 0


def _hidden(host: Host) -> str:
    hidden = host.hidepid()
    return f"; /proc hides those of other users (hidepid={hidden}): mount it with gid=GROUP" if hidden else ""


def _populate() -> Result:
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as memory:
            memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        return problem(
            "populating", f"{error.strerror}: memory cannot be allocated in advance; Linux 5.14 or newer is needed"
        )
    return ok("populating", "memory can be allocated in advance")
