"""The address that Prometheus scrapes. Imported only if metrics.listen is set."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from pagetier.daemon.config.address import Address
from pagetier.daemon.config.schema import Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.metrics.families import families
from pagetier.daemon.metrics.http import OpenConnections, Page, ScrapeConnection
from pagetier.daemon.metrics.sample import Sampler
from pagetier.daemon.server.control_socket import SocketError, identity, open_socket, remove_socket
from pagetier.daemon.server.listener import ConnectionAcceptor

_BACKLOG = 128
_AT_ONCE = 16
_ELSE = "set another port, or a path"
_REMEDIES = {
    errno.EADDRINUSE: "stop the process that uses it, or set another port",
    errno.EACCES: "ports below net.ipv4.ip_unprivileged_port_start (1024) need root: set another port, or a path",
    errno.EAFNOSUPPORT: "the service has no network: `pagetier unit install --metrics` installs"
    " metrics-on-localhost.conf, which gives it this host's; a path, such as /run/pagetier/metrics.sock, needs none",
}


class _Counters:
    """Takes a sample each time that Prometheus collects the metrics."""

    def __init__(self, sampler: Sampler, most_spaces: int) -> None:
        self._sampler = sampler
        self._most_spaces = most_spaces

    def collect(self) -> Iterator[Metric]:
        """Returns all families of one sample."""
        return families(self._sampler.take(), self._most_spaces)

    def describe(self) -> Iterator[Metric]:
        """Returns nothing: no other collector uses these names."""
        return iter(())


class MetricsEndpoint:
    """Answers scrapes from start() to stop(). Raises SocketError if the address cannot be used."""

    def __init__(self, config: Config, service: Service) -> None:
        assert config.metrics.listen is not None
        self._address = config.metrics.listen
        self._registry = CollectorRegistry()
        self._registry.register(_Counters(Sampler(service.segments, service), config.metrics.namespaces))
        self._registry.register(ProcessCollector(registry=None))
        self._listening = _open(self._address, config.access.socket_mode)
        self._file = identity(self._address.path) if self._address.path is not None else None
        self._accepting: ConnectionAcceptor | None = None
        self._connections = OpenConnections()

    async def start(self) -> None:
        """Starts to answer."""
        self._page("")  # imports what the first answer needs before a scrape waits for it
        self._accepting = ConnectionAcceptor(
            self._listening, lambda: ScrapeConnection(self._connections, self._page), _AT_ONCE
        )

    def stop(self) -> None:
        """Stops answering and closes the socket."""
        if self._address.path is not None:
            remove_socket(self._address.path, self._file)
        (self._accepting or self._listening).close()

    def _page(self, accept: str) -> Page:
        encode, kind = choose_encoder(accept)
        return Page(HTTPStatus.OK, kind, encode(self._registry))


def _open(address: Address, mode: int) -> socket.socket:
    if address.path is not None:
        return open_socket(Path(address.path), mode, setting="metrics.listen")
    try:
        family, kind, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return _listen(socket.socket(family, kind), place)
    except OSError as error:
        why = f"{error.strerror or error}: {_REMEDIES.get(error.errno or 0, _ELSE)}"
        raise SocketError(f"metrics.listen = {address}: {why}") from error


def _listen(listening: socket.socket, place: tuple[Any, ...]) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
