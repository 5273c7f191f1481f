"""A worker as a child process, connected by a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

from pagetier.daemon.common.namespaces import wrong_space
from pagetier.daemon.workers.worker_link import WorkerLink
from pagetier.shm._core import STORED_PAGE_LAYOUT
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.page_rows import PAGE_KEYS, PAGE_SIZES, STORED_PAGES
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.worker_protocol import (
    WORKER_BUILD,
    Command,
    FleetOpened,
    Found,
    HasRead,
    HistoryPart,
    InventoryPart,
    Opened,
    OpenFailed,
    Report,
    Serve,
    ServeFleet,
    Stored,
    Wrote,
    decode_report,
    other_version,
)

_MOST_FRAMES: Final = 1 << 40
_MOST_BYTES: Final = 1 << 48
_MOST_PAGES: Final = 1 << 40
_RESULTS: Final = frozenset(Stored)


def check(report: Report) -> None:
    """Raises ProtocolError if the parts of a report are inconsistent."""
    wrong = _wrong(report)
    if wrong:
        raise ProtocolError(f"{type(report).__name__}: {wrong}")


def _wrong(report: Report) -> str:
    match report:
        case Opened() if not 0 <= report.capacity <= _MOST_FRAMES or report.pages < 0:
            return f"room for {report.capacity} frames and {report.pages} pages"
        case InventoryPart() | HistoryPart():
            table, older = (report.table, report.older) if isinstance(report, InventoryPart) else ((), 0)
            return _wrong_pages(report.pages, older) or next(filter(None, map(wrong_space, table)), "")
        case Wrote() if not set(report.stored) <= _RESULTS:
            return "an unknown result of a page"
        case HasRead() if report.first < 0 or not set(report.read) <= {0, 1} or not PAGE_KEYS.is_whole(report.damaged):
            return "inconsistent pages"
        case Found() if not PAGE_SIZES.is_whole(report.sizes):
            return "a size in part"
        case _:
            return ""


def _wrong_pages(rows: bytes, older: int) -> str:
    import numpy as np

    from pagetier.shm.row_arrays import dtype_of

    if not 0 <= older <= _MOST_PAGES:
        return f"{older} older pages"
    if not STORED_PAGES.is_whole(rows):
        return f"{len(rows)} bytes of pages"
    if not rows:
        return ""
    sizes = np.frombuffer(rows, dtype_of(STORED_PAGE_LAYOUT))["size"]
    if not 0 < sizes.min() <= sizes.max() < _MOST_BYTES:
        return f"pages of {sizes.min()} to {sizes.max()} bytes"
    return ""


def _of_this_version(report: Report) -> Report:
    """Returns the report; in place of one that a worker of another version has opened the tier, that it failed to."""
    if isinstance(report, Opened | FleetOpened) and report.build != WORKER_BUILD:
        return OpenFailed(other_version(report.build))
    return report


_CHUNK: Final = 1 << 18
_DYING_S: Final = 5.0
# Signals of a crash that the files or a bug may have caused.
_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})


CommandSender: TypeAlias = Callable[[Command], None]


def no_worker(command: Command) -> None:
    """Discards a command: there is no worker. Implements CommandSender."""


class WorkerProcess(asyncio.BufferedProtocol):
    """A worker process and the connection to it. On the loop's thread only.

    Reports are received until the worker sends an invalid one or closes the connection.

    Attributes:
        ended: Done when the process has ended.
        opened: The worker reported that it has opened the tier.
        failure: The worker's last report that the tier cannot be used, None if there was none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: Callable[[Report], None], link: WorkerLink) -> None:
        self._loop = loop
        self._hear = hear
        self._unpacker = Unpacker()
        self._received = memoryview(bytearray(_CHUNK))  # the kernel would map and unmap fresh memory
        self._listens = True
        self.opened = False
        self.failure: OpenFailed | None = None
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self._dying: asyncio.TimerHandle | None = None
        self._connecting = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._link = link
        self._socket, self.process, self._pidfd = link.socket, link.process, link.pidfd
        self._code: int | None = None
        loop.add_reader(self._pidfd, self._gone)

    async def serve(self, command: Serve | ServeFleet, descriptors: list[int]) -> None:
        """Sends the worker its configuration and the descriptors of the segments, and starts to receive reports.

        Raises OSError if the worker is gone.
        """
        socket.send_fds(self._socket, [pack(command)], descriptors)
        point("disk.served")
        self._connecting = True  # from now on the transport closes the socket, even if it is not created yet
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._socket)
        if self.ended.done():
            self._transport.abort()

    def send(self, command: Command) -> None:
        """Sends a command without waiting. Commands to a dead worker are lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(command))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes are to be received."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Passes on each complete report."""
        self._take(bytes(self._received[:nbytes]))

    def _take(self, data: bytes) -> None:
        try:
            for body in self._unpacker.feed(data) if self._listens else ():
                report = _of_this_version(decode_report(body))
                check(report)
                if isinstance(report, Opened | FleetOpened | OpenFailed):
                    self._note_opening(report)
                self._hear(report)
        except ProtocolError as error:
            self._listens = False
            self.give_up(f"sent an invalid report: {error}")

    def _note_opening(self, report: Opened | FleetOpened | OpenFailed) -> None:
        match report:
            case Opened() | FleetOpened():
                self.opened = True
            case OpenFailed():
                self.failure = report
                self.expect_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expects the end of the worker: it closes the connection only when it ends."""
        self.expect_end()

    def give_up(self, why: str) -> None:
        """Kills the worker for this reason; `ended` follows."""
        self._why = self._why or why
        self.kill()

    def kill(self) -> None:
        """Kills the worker; `ended` follows."""
        if not self.ended.done():
            self._link.kill()

    def abandon(self) -> None:
        """Kills the worker without hearing its reports any more: what they are about is no longer kept."""
        self._listens = False
        self.kill()

    def expect_end(self) -> None:
        """Kills the worker if it does not end by itself within five seconds; `ended` follows."""
        if self._dying is None and not self.ended.done():
            self._dying = self._loop.call_later(_DYING_S, self.give_up, "did not end by itself and was killed")

    @property
    def death(self) -> str:
        """How the worker ended."""
        code = self._code
        if self._why:
            return self._why
        if code is None:
            return "ended: see its own log"
        if code == -signal.SIGKILL:
            return "was killed by signal 9, maybe because memory ran out: see dmesg"
        if code == -signal.SIGBUS:
            return "was killed by SIGBUS: its file system is full, or a file was truncated or could not be read"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    @property
    def crashed(self) -> bool:
        """Whether the worker ended by a signal that damaged files may have caused."""
        return -(self._code or 0) in _CRASHES

    def _gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._code = self._link.reap()
        if self._dying is not None:
            self._dying.cancel()
        if self._transport is not None:
            self._receive_rest()
            self._transport.abort()
        elif not self._connecting:
            self._socket.close()
        if not self.ended.done():
            self.ended.set_result(None)
        os.close(self._pidfd)  # nothing kills the process by it after `ended`

    def _receive_rest(self) -> None:
        """Receives the last reports of the worker, such as the reason of its end."""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(_CHUNK):
                self._take(data)
