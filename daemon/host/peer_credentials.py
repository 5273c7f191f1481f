"""Who is at the other end of the control socket, as the kernel says."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from enum import IntEnum

import msgspec

from pagetier.daemon.config.schema import AccessOptions
from pagetier.shm.process import Process
from pagetier.shm.socket_trust import peer_credentials

# not in Python's socket module
_SO_PEERGROUPS = 59
SO_PEERPIDFD = 77  # Linux 6.5
_GROUPS_BYTES = 1024  # the most that Python lets getsockopt return


class Peer(msgspec.Struct, frozen=True):
    """A process that connected, as it was then. pidfd: readable when it is gone; whoever has the Peer closes it."""

    process: Process
    uid: int
    groups: frozenset[int]
    pidfd: int


class Caller(msgspec.Struct, frozen=True):
    """Who connected, before it is looked at closely. pid: 0 for one that can not be seen from here."""

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}"


def caller_of(connection: socket.socket) -> Caller:
    """The process that connected, and may be gone."""
    pid, uid, gid = peer_credentials(connection)
    return Caller(pid, uid, _groups(connection) | {gid})


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Raises ProcessLookupError if it is gone or can not be seen from here."""
    pid, uid, gid = peer_credentials(connection)
    if pid <= 0:
        raise ProcessLookupError("its process lives in a PID namespace that can not be seen from here")
    process = Process.of(pid)
    return Peer(process, uid, _groups(connection) | {gid}, _pidfd(connection, process))


def _pidfd(connection: socket.socket, process: Process) -> int:
    """The kernel's own word for the peer, where it gives it: no pid can be reused in between."""
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return process.watch()
    fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return descriptor


def _groups(connection: socket.socket) -> frozenset[int]:
    """Supplementary groups; none of a process that has more than 256."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(number for (number,) in struct.iter_unpack("I", packed))


class Rights(IntEnum):
    """What a peer may do; each may do what those before it may."""

    NOTHING = 0
    WATCH = 1  # look at index and lock words, through read-only descriptors
    USE = 2  # attach, drop pages, have them written
    RULE = 3  # change what the configuration says


def rights_of(peer: Peer | Caller, access: AccessOptions) -> Rights:
    """Root and the daemon's own user rule; who else may do what is in the configuration."""
    if peer.uid in (os.geteuid(), 0):
        return Rights.RULE
    if peer.uid in access.users or not peer.groups.isdisjoint(access.groups):
        return Rights.USE
    watches = peer.uid in access.watch_users or not peer.groups.isdisjoint(access.watch_groups)
    return Rights.WATCH if watches else Rights.NOTHING
