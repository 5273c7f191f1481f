"""Who is at the other end of the control socket, as the kernel says."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

import msgspec

from ..shm.process import Process
from .options import Access

_UCRED = struct.Struct("iII")
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


def name_of(connection: socket.socket) -> str:
    """The process that connected, for the log."""
    pid, uid, _ = _credentials(connection)
    return f"process {pid} of user {uid}"


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Raises ProcessLookupError if it is gone or can not be seen from here."""
    pid, uid, gid = _credentials(connection)
    if pid <= 0:
        raise ProcessLookupError("its process lives in a PID namespace that can not be seen from here")
    process = Process.of(pid)
    return Peer(process, uid, _groups(connection) | {gid}, _pidfd(connection, process))


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


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


def may_attach(peer: Peer, access: Access) -> bool:
    """The daemon's own user, root, and who the configuration names."""
    return peer.uid in (os.geteuid(), 0, *access.users) or not peer.groups.isdisjoint(access.groups)
