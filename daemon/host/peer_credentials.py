"""Identifies the process at the other end of the control socket, as the kernel reports it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from enum import IntEnum

import msgspec

from pagetier.daemon.config.id_ranges import contains_any
from pagetier.daemon.config.schema import AccessOptions
from pagetier.shm.process import UNSEEN, Process, kernel_id_of
from pagetier.shm.socket_trust import peer_credentials
from pagetier.shm.user_namespace import unmapped_ids

# Python's socket module has neither of these.
_SO_PEERGROUPS = 59
SO_PEERPIDFD = 77  # Linux 6.5
_GROUPS_BYTES = 1024  # the most that Python's getsockopt() returns


class Peer(msgspec.Struct, frozen=True):
    """A process that connected, with its credentials at that time.

    Attributes:
        process: Its identity.
        uid: Its user ID.
        groups: Its group IDs.
        pidfd: Readable when the process has ended. The owner of the Peer closes it.
    """

    process: Process
    uid: int
    groups: frozenset[int]
    pidfd: int


class Caller(msgspec.Struct, frozen=True):
    """The credentials of a connection before its greeting.

    Attributes:
        pid: The process ID; 0 if this PID namespace does not show the process.
        uid: Its user ID.
        groups: Its group IDs.
        kernel_id: Its kernel ID, 0 if it is unknown.
    """

    pid: int
    uid: int
    groups: frozenset[int]
    kernel_id: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}" if self.pid else f"a process of user {self.uid}"

    @property
    def process(self) -> tuple[int, int]:
        """Names the process in counts: two processes that are not visible from here have different names."""
        return (0, self.kernel_id) if self.kernel_id else (self.pid, 0)


def caller_of(connection: socket.socket) -> Caller:
    """Returns the process that connected, which may have ended."""
    pid, uid, gid = peer_credentials(connection)
    kernel_id = 0
    with contextlib.suppress(OSError):
        pidfd = _kernels_pidfd(connection)
        try:
            kernel_id = kernel_id_of(pidfd)
        finally:
            os.close(pidfd)
    return Caller(pid, uid, _groups(connection) | {gid}, kernel_id)


def peer_of(connection: socket.socket) -> Peer:
    """Returns the process that connected. The caller closes its pidfd.

    Raises:
        ProcessLookupError: The process has ended, or this kernel cannot identify it from this PID namespace.
        OSError: There is no descriptor for it. Its number alone would name it otherwise than before.
    """
    pid, uid, gid = peer_credentials(connection)
    process, pidfd = _identified(connection, pid)
    return Peer(process, uid, _groups(connection) | {gid}, pidfd)


def _identified(connection: socket.socket, pid: int) -> tuple[Process, int]:
    """Returns the peer's process and a pidfd of it: the kernel's own, as a PID may be reused before it is opened."""
    try:
        pidfd = _kernels_pidfd(connection)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        if pid <= 0:
            raise ProcessLookupError(f"{UNSEEN} ({error.strerror})") from error
        process = Process.of(pid)
        return process, process.watch()
    try:
        return Process.of_pidfd(pid, pidfd), pidfd
    except BaseException:
        os.close(pidfd)
        raise


def _kernels_pidfd(connection: socket.socket) -> int:
    """Returns the kernel's pidfd of the process that connected. Raises OSError before Linux 6.5."""
    pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    fcntl.fcntl(pidfd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return pidfd


def _groups(connection: socket.socket) -> frozenset[int]:
    """Returns the supplementary groups; none for a process that has more than 256."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(number for (number,) in struct.iter_unpack("I", packed))


class Rights(IntEnum):
    """What a peer may do. Each right includes those before it."""

    NOTHING = 0
    WATCH = 1  # read the index and the lock words, through read-only descriptors
    ATTACH = 2  # attach, drop pages, have pages written to disk
    MANAGE = 3  # change settings


def rights_of(peer: Peer | Caller, access: AccessOptions) -> Rights:
    """Returns a peer's rights: all for root and the daemon's own user, for others what the configuration grants.

    A number that stands for all users or groups whom this user namespace does not map identifies none of them, so it
    is in no list, and is not the daemon's own user.
    """
    unmapped = unmapped_ids()
    users, groups = {peer.uid} - {unmapped.user}, peer.groups - {unmapped.group}
    if users & {os.geteuid(), 0}:
        return Rights.MANAGE
    if access.authorize_by == "socket" or contains_any(access.users, users) or contains_any(access.groups, groups):
        return Rights.ATTACH
    watches = contains_any(access.watch_users, users) or contains_any(access.watch_groups, groups)
    return Rights.WATCH if watches else Rights.NOTHING
