"""`python -m pagetier.daemon.http FD`: the HTTP process. FD is its end of the socket pair with the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter
from typing import Final

from pagetier.daemon.http.api import Api
from pagetier.daemon.http.connection import HttpConnection, Response
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.messages import Entrance, Listener, ServeHttp
from pagetier.daemon.http.peers import OpenConnections
from pagetier.daemon.server.listener import ConnectionAcceptor
from pagetier.shm._core import Observer
from pagetier.shm.log_format import log_to_stderr
from pagetier.shm.process import be_child
from pagetier.shm.segment_files import observe_and_close

_AT_ONCE: Final = 16


def main(descriptor: int) -> None:
    """Serves until the daemon is gone."""
    log_to_stderr("info")
    be_child(b"pagetier-http", nice=0)
    asyncio.run(_run(socket.socket(fileno=descriptor)))


async def _run(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    _, daemon = await loop.create_unix_connection(DaemonChannel, sock=connection)
    serve = await daemon.served
    observer = observe_and_close([serve.index, serve.locks])

    async def render(accept: str) -> Response:
        return await _render(observer, daemon, serve, accept)

    api = Api(observer, daemon, render)
    counts = Counter[tuple[Entrance, int]]()
    for listener in serve.listeners:
        _accept(listener, OpenConnections(listener.entrance, counts), api)
    await daemon.closed
    os._exit(0)  # whatever is under way is of no use without the daemon


def _accept(listener: Listener, connections: OpenConnections, api: Api) -> None:
    listening = socket.socket(fileno=listener.descriptor)
    ConnectionAcceptor(listening, lambda: HttpConnection(connections, api.respond), _AT_ONCE)


async def _render(observer: Observer, daemon: DaemonChannel, serve: ServeHttp, accept: str) -> Response:
    numbers = await daemon.numbers()
    from pagetier.daemon.http.metrics_page import metrics_page

    return metrics_page(observer, numbers, accept, serve.namespaces)


if __name__ == "__main__":
    main(int(sys.argv[1]))
