"""The daemon's side of the HTTP interface: opens its sockets, keeps its process running, and answers that."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from typing import Final

from pagetier.daemon.common.child_environ import environ_without_credentials
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.token import read_token
from pagetier.daemon.http.channel_messages import (
    DaemonAnswer,
    Events,
    ForUser,
    HttpRequest,
    Numbers,
    ReadyToServe,
    ServeHttp,
    Settings,
    TakeEvents,
    TakeNumbers,
    read_http_request,
)
from pagetier.daemon.http.listening_sockets import ListeningSockets
from pagetier.daemon.http.notable_events import NotableEvents
from pagetier.daemon.index.service import Service
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.shm.log_format import event
from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.protocol import Fetch, HintPages, ProtocolError

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.5  # before the process is started again; doubles while it does not last
_LONGEST_PAUSE_S: Final = 30.0
_LASTING_S: Final = 10.0


class HttpServer:
    """The HTTP interface from the constructor to stop(). On the loop's thread only.

    Requests that arrive while its process starts wait in the sockets.

    Attributes:
        events: What the daemon has logged since.

    Raises:
        SocketError: An address cannot be used.
        ConfigError: The token cannot be read.
    """

    def __init__(self, config: Config, service: Service) -> None:
        self._config = config
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._settings = Settings(config.access, read_token(config.http.token_file), bool(config.disk.size))
        self._sockets = ListeningSockets(config)
        self._process: _HttpProcess | None = None
        self._again: asyncio.TimerHandle | None = None
        self.events = NotableEvents()
        logging.getLogger().addHandler(self.events)
        self._pause = _FIRST_PAUSE_S
        self._start()

    def follow(self, config: Config) -> None:
        """Applies new access rules and a new token. If that cannot be read, the previous one stays valid."""
        token = self._settings.token
        try:
            token = read_token(self._config.http.token_file)
        except ConfigError as error:
            log.error("the previous token stays in force: %s", error, extra=event("token_refused"))
        self._settings = Settings(config.access, token, bool(config.disk.size))
        if self._process is not None:
            self._process.send(self._settings)

    def restore(self) -> None:
        """Opens sockets again that another process has removed, and replaces the process, which has the old ones."""
        if self._sockets.restore() and self._process is not None:
            self._process.replace()

    def stop(self) -> None:
        """Stops answering and removes the sockets."""
        logging.getLogger().removeHandler(self.events)
        if self._again is not None:
            self._again.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.end()
        self._sockets.close()

    def _start(self) -> None:
        self._started = self._loop.time()
        try:
            self._process = _HttpProcess(self, self._service)
        except OSError as error:
            self.ended(f"cannot start: {error.strerror}")

    def hand_over(self, connection: socket.socket) -> None:
        """Sends the process what it needs to serve. Raises OSError."""
        serve = ServeHttp(self._sockets.entrances, self._config.metrics.namespaces, self._settings)
        segments = self._service.segments.read_only_descriptors()
        try:
            socket.send_fds(connection, [pack(serve)], [*segments, *self._sockets.descriptors])
        finally:
            for descriptor in segments:
                os.close(descriptor)

    def ended(self, why: str) -> None:
        """Starts the process again after a pause."""
        self._process = None
        lasted = self._loop.time() - self._started >= _LASTING_S
        pause = _FIRST_PAUSE_S if lasted else self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_S)
        line = "the HTTP process %s: it is started again in %g s"
        log.warning(line, why, pause, extra=event("http_ended", why=why))
        self._again = self._loop.call_later(pause, self._start)


class _HttpProcess(asyncio.Protocol):
    """The process, from the constructor to end(). Raises OSError if it cannot be started."""

    def __init__(self, server: HttpServer, service: Service) -> None:
        self._server: HttpServer | None = server
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._unpacker = Unpacker()
        self._transport: asyncio.Transport | None = None
        self._serves = False
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = _start(theirs)
        except OSError:
            self._socket.close()
            raise
        self._pidfd = os.pidfd_open(self._child.pid)
        self._loop.add_reader(self._pidfd, self._gone)
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        await self._loop.create_unix_connection(lambda: self, sock=self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remembers how to send."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, message: Settings | DaemonAnswer) -> None:
        """Sends a message without waiting. A process that does not serve yet will get the settings of that time."""
        if self._serves and self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def data_received(self, data: bytes) -> None:
        """Handles requests. The process is replaced if it sends something else."""
        try:
            for body in self._unpacker.feed(data):
                self._handle(read_http_request(body))
        except ProtocolError as error:
            log.error("the HTTP process sent an invalid message: %s", error, extra=event("http_invalid"))
            self._child.kill()

    def _handle(self, request: HttpRequest) -> None:
        match request:
            case ReadyToServe():
                self._hand_over()
            case TakeNumbers():
                self.send(Numbers(request.number, daemon_numbers(self._service)))
            case TakeEvents() if self._server is not None:
                self.send(Events(request.number, self._server.events.latest()))
            case ForUser(user, Fetch() as fetch):
                self._service.prefetch(user, fetch, self.send)
            case ForUser(user, HintPages() as hint):
                self.send(self._service.hints.give(user, hint))

    def _hand_over(self) -> None:
        if self._server is None:
            return
        try:
            self._server.hand_over(self._socket)
            self._serves = True
        except OSError as error:
            log.error("the HTTP process gets no sockets: %s", error.strerror, extra=event("http_invalid"))
            self._child.kill()

    def _gone(self) -> None:
        server, code = self._server, self._child.wait()
        self._release()
        if server is not None:
            server.ended(f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")

    def replace(self) -> None:
        """Kills the process. Another one follows."""
        self._child.kill()

    def end(self) -> None:
        """Kills the process, which keeps no state, and waits for its end."""
        self._child.kill()
        self._child.wait()
        self._release()

    def _release(self) -> None:
        self._server = None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()


def daemon_numbers(service: Service) -> DaemonNumbers:
    """Returns the daemon's numbers. On the loop's thread; takes well below a millisecond."""
    return DaemonNumbers(
        deaths=service.deaths,
        reserve_seconds=service.reservations.seconds,
        work=service.disk.work(),
        idle_namespaces=service.idle_namespaces.counts,
        progress=service.publisher.status.progress,
        eviction=service.evictor.report(),
        hints=service.hints.report,
        huge_pages=service.publisher.status.huge_pages,
        fleet=service.fleet.report,
        question_seconds=service.fleet.questions.seconds,
        tenants=service.tenants.report(),
        quota_rejections=dict(service.tenants.rejections),
    )


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pagetier.daemon.http", str(theirs.fileno())]
    return subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environ_without_credentials()
    )
