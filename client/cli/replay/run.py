"""The work of `pagetier-bench replay`: reads the trace, finds or starts the daemon, replays, prints the report."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec

from pagetier.client.cli.replay.clients import ClientPool, RateLimit, ReplayJob, UnreachableError
from pagetier.client.cli.replay.daemon_counters import DaemonCounters
from pagetier.client.cli.replay.private_daemon import DaemonError, PrivateDaemon, PrivateDisk
from pagetier.client.cli.replay.replay_report import ReplayResult, progress_bar, show
from pagetier.client.cli.replay.trace import Trace, TraceError, read_trace
from pagetier.client.cli.termination import exiting_on_sigterm
from pagetier.client.keys import Namespace
from pagetier.shm import clock
from pagetier.shm._core import ShmError
from pagetier.shm.daemon_link import LinkError
from pagetier.shm.exit_codes import Exit
from pagetier.shm.socket_path import default_socket

_LAYOUT: Final = "replay pattern 1"


class ReplayArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line.

    Attributes:
        trace: The file of the trace.
        clients: The number of clients.
        arena: The memory of the private daemon; None to use a running one.
        disk: The size of its disk tier; None for none.
        disk_path: The folder of its disk tier; None for a temporary one.
        disk_write: Its write policy; None for the default.
        page_bytes: The size of a page.
        block_tokens: Tokens of a block of the trace.
        page_blocks: Blocks of the trace that form a page.
        requests: The number of requests; None for all.
        pace: The most requests a second; 0 for no limit.
        socket: The control socket of the running daemon; None for the default one.
        json: Whether to print JSON instead of a table.
    """

    trace: Path
    clients: int
    arena: str | None
    disk: str | None
    disk_path: Path | None
    disk_write: str | None
    page_bytes: int
    block_tokens: int
    page_blocks: int
    requests: int | None
    pace: int
    socket: Path | None
    json: bool


def main(arguments: ReplayArguments) -> int:
    """Replays, prints the report and returns the exit code."""
    try:
        trace = read_trace(arguments.trace, arguments.block_tokens, arguments.requests, arguments.page_blocks)
    except (TraceError, OSError) as error:
        return _fail(error, Exit.USAGE)
    try:
        result = replay(arguments, trace)
    except (LinkError, ShmError, UnreachableError) as error:
        return _fail(f"cannot reach the daemon: {error}", Exit.UNREACHABLE)
    except DaemonError as error:
        return _fail(error, error.code)
    return _print_report(result, arguments)


def replay(arguments: ReplayArguments, trace: Trace) -> ReplayResult:
    """Replays a trace.

    Returns:
        The raw result.

    Raises:
        LinkError: The daemon cannot be reached.
        ShmError: The daemon's index cannot be read.
        UnreachableError: A client cannot attach.
        DaemonError: The private daemon does not start.
    """
    with exiting_on_sigterm(), _private_daemon(arguments) as daemon:
        socket = daemon.socket if daemon else arguments.socket or default_socket()
        daemon_counters = DaemonCounters(socket)
        job, pace = job_of(arguments, trace, socket), RateLimit(arguments.pace)
        with ClientPool(job, arguments.clients, pace) as pool, progress_bar(len(trace)) as progress:
            began = clock.now()
            counts = pool.replay(len(trace), progress)
            seconds = clock.now() - began
        return ReplayResult(
            counts=counts,
            seconds=seconds,
            counters=daemon_counters.deltas(),
            disk_frames=daemon_counters.disk_frames,
            clients=arguments.clients,
            block_tokens=trace.block_tokens,
            page_bytes=arguments.page_bytes,
            deaths=pool.deaths,
        )


def _private_daemon(arguments: ReplayArguments) -> PrivateDaemon | nullcontext[None]:
    if arguments.arena is None:
        return nullcontext()
    disk = (
        PrivateDisk(arguments.disk, arguments.disk_path, arguments.disk_write) if arguments.disk is not None else None
    )
    return PrivateDaemon(arguments.arena, arguments.page_bytes, disk)


def job_of(arguments: ReplayArguments, trace: Trace, socket: Path) -> ReplayJob:
    """Returns the input of the clients. Pages of another size or of other blocks have another namespace."""
    namespace = Namespace(
        model=f"replay/{arguments.trace.name.partition('.')[0] or 'trace'}",
        dtype=f"{arguments.page_bytes} bytes",
        page_tokens=trace.block_tokens,
        layout=_LAYOUT,
    )
    return ReplayJob(socket, trace, namespace, trace.keys(namespace), arguments.page_bytes)


def _print_report(result: ReplayResult, arguments: ReplayArguments) -> int:
    report = result.report()
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        show(report)
    for death in result.deaths:
        sys.stderr.write(f"pagetier-bench replay: {death}\n")
    if report.wrong_pages:
        wrong = f"{report.wrong_pages} of {report.pages_loaded} loaded pages have wrong content"
        sys.stderr.write(f"pagetier-bench replay: {wrong}\n")
    return Exit.WRONG if result.deaths or report.wrong_pages else Exit.OK


def _fail(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"pagetier-bench replay: {error}\n")
    return code
