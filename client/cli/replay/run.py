"""The work of `pagetier replay`: reads the trace, finds or starts the daemon, replays, reports."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from pagetier.client.cli.replay.clients import Pool, RateLimit, ReplayJob, UnreachableError
from pagetier.client.cli.replay.daemon_counters import Watch
from pagetier.client.cli.replay.private_daemon import DaemonError, OwnDaemon, PrivateDisk
from pagetier.client.cli.replay.report import ReplayRun, progress_bar, show
from pagetier.client.cli.replay.trace import Trace, TraceError, read_trace
from pagetier.client.keys import Namespace
from pagetier.shm._core import ShmError
from pagetier.shm.daemon_link import LinkError
from pagetier.shm.socket_path import default_socket

_LAYOUT: Final = "replay pattern 1"


class ReplayExit(IntEnum):
    """What the command ends with, beside the exit codes of a daemon that it starts."""

    OK = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 3


class ReplayArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line.

    arena: memory of a daemon to start, None to use a running one; disk: of that daemon, None for none; requests: None
    for all.
    """

    trace: Path
    clients: int
    arena: str | None
    disk: str | None
    disk_path: Path | None
    disk_write: str | None
    page_bytes: int
    block_tokens: int
    requests: int | None
    pace: int
    socket: Path | None
    json: bool


def main(wanted: ReplayArguments) -> int:
    """Replays, prints the report, returns the exit code."""
    try:
        trace = read_trace(wanted.trace, wanted.block_tokens, wanted.requests)
    except (TraceError, OSError) as error:
        return _complain(error, ReplayExit.USAGE)
    try:
        run = replay(wanted, trace)
    except (LinkError, ShmError, UnreachableError) as error:
        return _complain(f"no daemon to replay against: {error}", ReplayExit.UNREACHABLE)
    except DaemonError as error:
        return _complain(error, error.code)
    return _tell(run, wanted)


def replay(wanted: ReplayArguments, trace: Trace) -> ReplayRun:
    """Replays a trace as wanted.

    Raises LinkError, ShmError or UnreachableError where there is no daemon, DaemonError if the own one does not start.
    """
    with _stopped_in_order(), _own_daemon(wanted) as daemon:
        socket = daemon.socket if daemon else wanted.socket or default_socket()
        watch = Watch(socket)
        job, pace = job_of(wanted, trace, socket), RateLimit(wanted.pace)
        with Pool(job, wanted.clients, pace) as pool, progress_bar(len(trace)) as progress:
            began = time.monotonic()
            tally = pool.replay(len(trace), progress)
            seconds = time.monotonic() - began
        return ReplayRun(
            tally=tally,
            seconds=seconds,
            deeds=watch.deeds(),
            disk_frames=watch.disk_frames,
            clients=wanted.clients,
            block_tokens=trace.block_tokens,
            page_bytes=wanted.page_bytes,
            deaths=pool.deaths,
        )


def _own_daemon(wanted: ReplayArguments) -> OwnDaemon | nullcontext[None]:
    if wanted.arena is None:
        return nullcontext()
    disk = PrivateDisk(wanted.disk, wanted.disk_path, wanted.disk_write) if wanted.disk is not None else None
    return OwnDaemon(wanted.arena, wanted.page_bytes, disk)


def job_of(wanted: ReplayArguments, trace: Trace, socket: Path) -> ReplayJob:
    """What the clients are told. Pages of another size or of other blocks are in a namespace of their own."""
    namespace = Namespace(
        model=f"replay/{wanted.trace.name.partition('.')[0] or 'trace'}",
        dtype=f"{wanted.page_bytes} bytes",
        page_tokens=trace.block_tokens,
        layout=_LAYOUT,
    )
    return ReplayJob(socket, trace, namespace, trace.keys(namespace), wanted.page_bytes)


def _tell(run: ReplayRun, wanted: ReplayArguments) -> int:
    report = run.report()
    if wanted.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        show(report)
    for death in run.deaths:
        sys.stderr.write(f"pagetier replay: {death}\n")
    if report.wrong_pages:
        sys.stderr.write(f"pagetier replay: {report.wrong_pages} pages held other bytes than were stored\n")
    return ReplayExit.WRONG if run.deaths or report.wrong_pages else ReplayExit.OK


def _complain(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"pagetier replay: {error}\n")
    return code


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """A SIGTERM ends this process as Ctrl-C does: with its clients and its daemon."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
