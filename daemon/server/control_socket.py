"""Opens, serves and removes the control socket."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.listening_socket import BoundSocket
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.connection import Connection
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.daemon.server.listener import ConnectionAcceptor
from pagetier.daemon.server.server_state import GREETING_S, ServerState
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.user_namespace import STANDS_FOR_UNMAPPED, UnmappedIds, unmapped_ids

log = logging.getLogger(__name__)

_RECEIVED = 256 << 10  # bytes that are received at once


class Server:
    """The control socket from the constructor to stop(). It answers from start() on.

    Raises:
        SocketError: The socket cannot be opened.

    `patience` is the number of seconds in which a client must send its greeting.
    """

    def __init__(self, path: Path, access: AccessOptions, patience: float = GREETING_S) -> None:
        self._path = path
        self._access = access
        self._patience = patience
        self._limits = ConnectionLimits()
        self._throttle = LogThrottle(log)
        self._buffer = memoryview(bytearray(_RECEIVED))
        self._logged: set[str] = set()
        self._bound = BoundSocket(path, access.socket_mode, access.socket_group)
        self._log_locked_out(access)
        self._service: Service | None = None
        self._accepting: ConnectionAcceptor | None = None

    async def start(self, service: Service) -> None:
        """Starts to answer. Clients that connected since the constructor have waited in the queue."""
        self._service = service
        self._accepting = self._accept(service)

    def restore(self) -> None:
        """Opens the socket again if another process has removed it. To be called about once a second."""
        if self._service is not None and self._accepting is not None and self._bound.restore() is not None:
            self._accepting.close()
            self._accepting = self._accept(self._service)

    def _accept(self, service: Service) -> ConnectionAcceptor:
        return ConnectionAcceptor(self._bound.listener, lambda: Connection(self._state(service)))

    def _state(self, service: Service) -> ServerState:
        limits, throttle, buffer = self._limits, self._throttle, self._buffer
        return ServerState(service, self._access, limits, throttle, buffer, self._patience, self._logged)

    def follow(self, access: AccessOptions, asked: AccessOptions) -> None:
        """Applies new access rules to new connections; existing ones stay.

        Args:
            access: The rules.
            asked: The same as configured, including what waits for a restart.
        """
        if access != self._access:
            self._access = access
            self._log_locked_out(asked)

    def _log_locked_out(self, asked: AccessOptions) -> None:
        if trouble := unidentified(asked, unmapped_ids()):
            log.warning("%s", trouble, extra=event("users_unmapped"))
        with contextlib.suppress(FileNotFoundError):  # the socket was removed by another process
            if trouble := locked_out(self._path.stat(), asked):
                log.warning("%s", trouble, extra=event("socket_shut"))

    def stop(self) -> None:
        """Stops accepting connections. Existing ones stay open until the process ends."""
        self._bound.remove()
        point("server.unlinked")
        (self._accepting or self._bound.listener).close()


def locked_out(found: os.stat_result, access: AccessOptions) -> str:
    """Returns which configured users cannot open the socket, and what to do; "" if all of them can.

    Args:
        found: The stat of the socket, which may have been created with an earlier configuration.
        access: The rules as configured.
    """
    mode = stat.S_IMODE(found.st_mode)
    if not _keeps_out(mode, found.st_gid, access):
        return ""
    problem = (
        f"the socket's mode {mode:04o} keeps out users that access.users, access.groups, access.watch_users or"
        " access.watch_groups name: "
    )
    if not _keeps_out(access.socket_mode, next(iter(access.socket_group), found.st_gid), access):
        setting = f'socket_mode = "{access.socket_mode:04o}"' if access.socket_mode != mode else "socket_group"
        return f"{problem}access.{setting} waits for a restart"
    return f'{problem}set access.socket_mode = "0666" and restart (the daemon still refuses all other users)'


def unidentified(access: AccessOptions, unmapped: UnmappedIds) -> str:
    """Returns which list names the number that stands for all unmapped users or groups, and what follows; or ""."""
    users = {"users": access.users, "watch_users": access.watch_users}
    groups = {"groups": access.groups, "watch_groups": access.watch_groups}
    named = [(key, ids, unmapped.user) for key, ids in users.items()]
    named += [(key, ids, unmapped.group) for key, ids in groups.items()]
    for key, ids, number in named:
        if number is not None and IdRange(number, number) in ids:
            return f"access.{key} names {number}, which {STANDS_FOR_UNMAPPED}: it admits none of them"
    return ""


def _keeps_out(mode: int, group: int, access: AccessOptions) -> bool:
    """Returns whether a socket of this mode and group keeps out a configured user."""
    users, groups = access.users + access.watch_users, access.groups + access.watch_groups
    if mode & stat.S_IWOTH or not (users or groups):
        return False
    return bool(users) or not mode & stat.S_IWGRP or set(groups) != {IdRange(group, group)}
