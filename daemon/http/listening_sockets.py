"""The sockets of the HTTP interface: ports and paths."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any, Final

from pagetier.daemon.config.address import Address
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.listening_socket import BoundSocket, SocketError
from pagetier.daemon.http.channel_messages import Entrance

_BACKLOG: Final = 128
_ELSE: Final = "set another port, or a path"
_REMEDIES: Final = {
    errno.EADDRINUSE: "stop the process that uses it, or set another port",
    errno.EACCES: "ports below net.ipv4.ip_unprivileged_port_start (1024) need root: set another port, or a path",
    errno.EAFNOSUPPORT: "the service has no network: `pagetier unit install --metrics` installs"
    " metrics-on-localhost.conf, which gives it this host's; a path, such as /run/pagetier/metrics.sock, needs none",
}


class ListeningSockets:
    """The sockets of http.listen and metrics.listen. Raises SocketError if an address cannot be used."""

    def __init__(self, config: Config) -> None:
        self._paths: dict[int, BoundSocket] = {}  # those of `_sockets` that have a path
        self._sockets: list[tuple[socket.socket, Entrance]] = []
        metrics = config.metrics.listen
        try:
            for address in config.http.listen:
                entrance = Entrance.PORT if address.path is None else Entrance.SOCKET
                self._open(address, "http.listen", config, entrance)
            if metrics is not None and metrics not in config.http.listen:
                self._open(metrics, "metrics.listen", config, Entrance.METRICS)
        except SocketError:
            self.close()
            raise

    def _open(self, address: Address, setting: str, config: Config, entrance: Entrance) -> None:
        group = config.access.socket_group if entrance is Entrance.SOCKET else ()
        listening = open_address(address, setting, config.access.socket_mode, group)
        if isinstance(listening, BoundSocket):
            self._paths[len(self._sockets)] = listening
            listening = listening.listener
        self._sockets.append((listening, entrance))

    def restore(self) -> bool:
        """Opens sockets again that another process has removed. Returns whether there were any."""
        replaced = {at: before for at, bound in self._paths.items() if (before := bound.restore()) is not None}
        for at, before in replaced.items():
            before.close()
            self._sockets[at] = (self._paths[at].listener, self._sockets[at][1])
        return bool(replaced)

    @property
    def entrances(self) -> tuple[Entrance, ...]:
        """How each of the sockets identifies its callers."""
        return tuple(entrance for _, entrance in self._sockets)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the sockets, in the order of `entrances`."""
        return [each.fileno() for each, _ in self._sockets]

    def close(self) -> None:
        """Closes the sockets and removes their paths."""
        for bound in self._paths.values():
            bound.remove()
        for listening, _ in self._sockets:
            listening.close()


def open_address(address: Address, setting: str, mode: int, group: tuple[int, ...] = ()) -> socket.socket | BoundSocket:
    """Returns a socket that listens on an address of this host. Raises SocketError."""
    if address.path is not None:
        return BoundSocket(Path(address.path), mode, group, setting)
    try:
        family, kind, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return _listen(socket.socket(family, kind), place)
    except OSError as error:
        why = f"{error.strerror or error}: {_REMEDIES.get(error.errno or 0, _ELSE)}"
        raise SocketError(f"{setting} = {address}: {why}") from error


def _listen(listening: socket.socket, place: tuple[Any, ...]) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
