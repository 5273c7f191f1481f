"""Who is at the other end of the control socket, as the kernel says."""

from __future__ import annotations

import fcntl
import os
import pwd
import socket
import struct

import msgspec

from ..shm.process import Process
from .options import Access

_UCRED = struct.Struct("iII")
_SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module


class Peer(msgspec.Struct, frozen=True):
    """A process that connected. pidfd: readable when the process is gone; whoever has the Peer closes it."""

    process: Process
    uid: int
    gid: int
    pidfd: int


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Raises ProcessLookupError if it is gone or can not be seen from here."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if pid <= 0:
        raise ProcessLookupError("its process lives in a PID namespace that can not be seen from here")
    process = Process.of(pid)
    return Peer(process, uid, gid, _pidfd(connection, process))


def _pidfd(connection: socket.socket, process: Process) -> int:
    """The kernel's own word for the peer, where it gives it: no pid can be reused in between."""
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return process.watch()
    fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return descriptor


def may_attach(peer: Peer, access: Access) -> bool:
    """The daemon's own user, root, and who the configuration names."""
    if peer.uid in (os.geteuid(), 0, *access.users) or peer.gid in access.groups:
        return True
    return bool(access.groups) and not _groups_of(peer).isdisjoint(access.groups)


def _groups_of(peer: Peer) -> set[int]:
    try:
        return set(os.getgrouplist(pwd.getpwuid(peer.uid).pw_name, peer.gid))
    except KeyError:
        return {peer.gid}
