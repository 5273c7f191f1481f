"""`python -m pagetier.tiers.worker FD`: the process that the daemon starts for a tier.

FD is its end of the socket pair. With `--connect PATH` in its place, the process belongs to a service of its own: it
waits for the daemon's socket, and ends with the daemon or by SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, TypeVar

from pagetier.shm import clock
from pagetier.shm._core import ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import finish_log, log_to_stderr
from pagetier.shm.process import be_child, lower_priority
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.base import DoubtError, Tier, TierError
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel, descriptors_of
from pagetier.tiers.worker.disk_worker import DiskWorker
from pagetier.tiers.worker_protocol import WORKER_BUILD, OpenFailed, Serve, ServeFleet, Trust, other_version

_WAITING_S: Final = 0.5
FAILED: Final = 4

_T = TypeVar("_T")

log = logging.getLogger("pagetier.tier")


def main(arguments: Sequence[str]) -> int:
    """Serves a tier until the daemon ends it or is gone. Returns the exit code."""
    log_to_stderr("info")
    if arguments[0] == "--connect":
        connection = await_daemon(arguments[1])
    else:
        be_child(b"pagetier-disk")
        connection = socket.socket(fileno=int(arguments[0]))
    channel = Channel(connection)
    try:
        return _serve(channel)
    except (TierError, ShmError, ProtocolError, OSError) as error:
        channel.send(OpenFailed(str(error), Trust.PROVEN if isinstance(error, DoubtError) else Trust.AS_LEFT))
        return FAILED


def await_daemon(path: str) -> socket.socket:
    """Returns a connection to the daemon's socket, as soon as there is one: a daemon without a fleet has none."""
    waits = False
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if not waits:
                log.info("waiting for a daemon with remote.worker = service at %s: %s", path, error.strerror)
            waits = True
            clock.sleep(_WAITING_S)
        else:
            return connection


def _serve(channel: Channel) -> int:
    command = _configuration(channel)
    if command is None:
        return 0
    point("worker.configured")
    memory = WorkerArena(descriptors_of(channel), command.slot)
    point("worker.mapped")
    if command.populated:
        threading.Thread(target=_populate, args=(memory,), name="pagetier-populate", daemon=True).start()
    if isinstance(command, ServeFleet):
        _serve_fleet(command, memory, channel)
    else:
        _serve_catalogue(command, memory, channel)
    point("worker.closed")
    return 0


def _configuration(channel: Channel) -> Serve | ServeFleet | None:
    """Returns the first message; None if the daemon is gone. Raises TierError if the daemon is of another version."""
    try:
        command = channel.receive()
    except ProtocolError as error:
        raise TierError(other_version(WORKER_BUILD)) from error
    if command is None or (isinstance(command, Serve | ServeFleet) and command.build == WORKER_BUILD):
        return command
    raise TierError(other_version(WORKER_BUILD))


def _populate(memory: WorkerArena) -> None:
    lower_priority()
    memory.populate()


def _serve_catalogue(command: Serve, memory: WorkerArena, channel: Channel) -> None:
    # Load the store's libraries only where there is a disk.
    from pagetier.tiers.worker.open_store import open_as_trusted

    tier = _beside_engines(lambda: open_as_trusted(command, memory.frame_bytes))
    point("worker.opened")
    with _closing(tier):
        worker = DiskWorker(tier, memory, channel)
        _beside_engines(worker.report)
        worker.serve()


def _beside_engines(call: Callable[[], _T]) -> _T:
    """Returns what a call returns that takes no processor time from engines: it may verify or list all pages."""
    with ThreadPoolExecutor(1, "pagetier-open", lower_priority) as thread:
        return thread.submit(call).result()


def _serve_fleet(command: ServeFleet, memory: WorkerArena, channel: Channel) -> None:
    # Load the store's libraries only where there is a fleet.
    from pagetier.tiers.fleet.open_fleet import open_fleet
    from pagetier.tiers.worker.fleet_worker import FleetWorker

    with closing(open_fleet(command.options)) as fleet:
        point("fleet.opened")
        worker = FleetWorker(fleet, memory, channel, command.options.timeout_s)
        worker.report()
        worker.serve()


@contextlib.contextmanager
def _closing(tier: Tier) -> Iterator[None]:
    """Closes the tier. If the tier is in doubt already, that error is reported and not the one of closing it."""
    try:
        yield
    except DoubtError:
        with contextlib.suppress(TierError):
            tier.close()
        raise
    except BaseException:
        tier.close()
        raise
    tier.close()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    finish_log()
    os._exit(code)  # a call of a fleet's store may never return; nothing else has to be cleaned up
