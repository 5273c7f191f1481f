"""Checks the sockets that a start would open, for `pagetierd --check`. Opens none of them to clients."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagetier.daemon.config.address import Address
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.host.listening_socket import SocketError, another, check_folder, check_group, why_closed
from pagetier.daemon.http.listening_sockets import open_address
from pagetier.daemon.running_daemon import has_port
from pagetier.daemon.segments_check import FoundDaemon
from pagetier.daemon.server.control_socket import locked_out, unidentified
from pagetier.shm.socket_trust import peer_credentials
from pagetier.shm.user_namespace import unmapped_ids

_PROBE_S: Final = 1.0


def check_control_socket(config: Config, daemon: FoundDaemon | None) -> None:
    """Checks the path of the control socket. That of the running daemon of this name counts as free.

    Raises:
        SocketError: What the start would raise.
    """
    _check_path(config.socket, "socket", daemon)
    check_group(config.socket, config.access.socket_group)


def http_addresses(config: Config) -> Iterator[tuple[str, Address]]:
    """Yields the addresses of the HTTP interface with their settings."""
    yield from (("http.listen", address) for address in config.http.listen)
    if config.metrics.listen is not None:
        yield "metrics.listen", config.metrics.listen


def check_http_socket(address: Address, setting: str, daemon: FoundDaemon | None) -> None:
    """Checks an address of the HTTP interface. That of the running daemon of this name counts as free.

    Raises:
        SocketError: What the start would raise.
    """
    if address.path is not None:
        _check_path(address.path, setting, daemon)
    else:
        _check_port(address, setting, daemon)


def _check_path(path: Path, setting: str, daemon: FoundDaemon | None) -> None:
    _check_present(path, setting, daemon)  # before the folder, as the start does
    check_folder(path, setting)


def _check_present(path: Path, setting: str, daemon: FoundDaemon | None) -> None:
    """Raises SocketError if the start would not replace the file at a path."""
    try:
        found = path.lstat()
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketError(f"{path} exists and is not a socket: remove it, or {another(setting)}")
    listener = _listener(path, setting)
    if listener is None or (daemon is not None and (daemon.pid == listener or 0 in (daemon.pid, listener))):
        return
    raise SocketError(f"another daemon listens on {path}: stop it, or {another(setting)}")


def _listener(path: Path, setting: str) -> int | None:
    """Returns the PID of the process that listens on a path, 0 if it cannot be seen; None if no process does.

    Raises:
        SocketError: This user may not open the socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(os.fspath(path))
            return peer_credentials(probe)[0]
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except PermissionError:
            raise SocketError(why_closed(path, setting)) from None
        except OSError:
            return 0


def _check_port(address: Address, setting: str, daemon: FoundDaemon | None) -> None:
    error = _bind(address)
    if not error or (error == errno.EADDRINUSE and daemon is not None and _may_have(daemon, address)):
        return
    listening = open_address(address, setting, 0)  # it fails for the same reason, in the words of the start
    if isinstance(listening, socket.socket):
        listening.close()


def _may_have(daemon: FoundDaemon, address: Address) -> bool:
    return not daemon.pid or has_port(daemon.pid, address.port)


def _bind(address: Address) -> int:
    """Binds a socket to a port for a moment, without listening. Returns the number of the error; 0 if it succeeds."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def in_new_folder(path: Path) -> str:
    """Returns what to say of a socket whose folder does not exist, since its path may be misspelt; else ""."""
    there = os.path.isdir(path.parent)  # noqa: PTH112  never raises
    return "" if there else ", whose folder does not exist yet: the start creates it"


def access_warnings(config: Config) -> Iterator[str]:
    """Yields a warning for each rule of access that the control socket would not let through."""
    if trouble := unidentified(config.access, unmapped_ids()):
        yield f"warning: {trouble}"
    if trouble := locked_out(_as_created(config.socket, config.access), config.access):
        yield f"warning: {trouble}"


def _as_created(path: Path, access: AccessOptions) -> os.stat_result:
    """Returns the status that the socket would have."""
    group = next(iter(access.socket_group), None)
    group = _expected_group(path, access) if group is None else group
    return os.stat_result((stat.S_IFSOCK | access.socket_mode, 0, 0, 1, 0, group, 0, 0, 0, 0))


def _expected_group(path: Path, access: AccessOptions) -> int:
    """Returns the group of the present socket, or of the daemon.

    Root checks the configuration of a service, too, whose group is usually the one that may attach.
    """
    with suppress(OSError):
        return path.lstat().st_gid
    named = access.groups + access.watch_groups
    return named[0].first if named and os.geteuid() == 0 else os.getegid()
