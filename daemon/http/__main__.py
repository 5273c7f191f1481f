"""`python -m pagetier.daemon.http FD`: the HTTP process. FD is its end of the socket pair with the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Final, NamedTuple

from pagetier.daemon.http.api import Api
from pagetier.daemon.http.channel_messages import ReadyToServe, ServeHttp, read_daemon_message
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.http_connection import HttpConnection, Response
from pagetier.daemon.http.page.token_history import TokenHistory, keep_history, read_totals
from pagetier.daemon.http.peers import Connections, OpenConnections
from pagetier.daemon.server.listener import ConnectionAcceptor
from pagetier.shm._core import Observer
from pagetier.shm.log_format import finish_log, log_to_stderr
from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.process import be_child
from pagetier.shm.protocol import ProtocolError
from pagetier.shm.segment_files import observe_and_close

_AT_ONCE: Final = 16
_CHUNK: Final = 1 << 16
_MOST_DESCRIPTORS: Final = 250  # of one message; Linux allows 253


class _Received(NamedTuple):
    """The daemon's first message, its descriptors, and what was received after it."""

    serve: ServeHttp
    descriptors: list[int]
    unpacker: Unpacker


def main(descriptor: int) -> None:
    """Serves until the daemon is gone."""
    log_to_stderr("info")
    be_child(b"pagetier-http")
    connection = socket.socket(fileno=descriptor)
    try:
        connection.sendall(pack(ReadyToServe()))
        received = _receive(connection)
    except OSError:
        sys.exit(0)  # the daemon has ended
    asyncio.run(_run(connection, received))


def _receive(connection: socket.socket) -> _Received:
    unpacker, descriptors = Unpacker(), list[int]()
    while True:
        data, more, _, _ = socket.recv_fds(connection, _CHUNK, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            sys.exit(0)
        descriptors += more
        for body in unpacker.feed(data):
            serve = read_daemon_message(body)
            if not isinstance(serve, ServeHttp) or len(descriptors) != 2 + len(serve.entrances):
                raise ProtocolError(f"{type(serve).__name__} came first, with {len(descriptors)} descriptors")
            return _Received(serve, descriptors, unpacker)


async def _run(connection: socket.socket, received: _Received) -> None:
    loop, serve = asyncio.get_running_loop(), received.serve
    index, locks, *listening = received.descriptors
    observer = observe_and_close([index, locks])
    channel = DaemonChannel(serve.settings, received.unpacker)
    await loop.create_unix_connection(lambda: channel, sock=connection)

    async def render(accept: str) -> Response:
        return await _render(observer, channel, serve, accept)

    async def show() -> Response:
        return await _show(observer, channel, history)

    history = TokenHistory(read_totals(observer))
    keeping = loop.create_task(keep_history(history, observer))
    api = Api(observer, channel, render, show)
    connections = Connections()
    for descriptor, entrance in zip(listening, serve.entrances, strict=True):
        _accept(descriptor, OpenConnections(entrance, connections), api)
    await channel.closed
    keeping.cancel()
    finish_log()
    os._exit(0)  # whatever is under way is of no use without the daemon


def _accept(descriptor: int, connections: OpenConnections, api: Api) -> None:
    listening = socket.socket(fileno=descriptor)
    ConnectionAcceptor(listening, lambda: HttpConnection(connections, api.respond), _AT_ONCE)


async def _render(observer: Observer, daemon: DaemonChannel, serve: ServeHttp, accept: str) -> Response:
    numbers = await daemon.numbers()
    from pagetier.daemon.http.metrics_page import metrics_page

    return metrics_page(observer, numbers, accept, serve.namespaces)


async def _show(observer: Observer, daemon: DaemonChannel, history: TokenHistory) -> Response:
    numbers, events = await asyncio.gather(daemon.numbers(), daemon.events())
    from pagetier.daemon.http.page.document import page, read_view

    history.add(read_totals(observer))
    return page(read_view(observer, numbers, events, history))


if __name__ == "__main__":
    main(int(sys.argv[1]))
