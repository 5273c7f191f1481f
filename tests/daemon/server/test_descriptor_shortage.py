"""Tests a daemon with too few descriptors: it serves no new client, and declares no process dead."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import PATIENCE_S
from in_process_server import SMALL
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.peer_credentials import Peer
from pagetier.daemon.index.service import Service
from pagetier.daemon.index.slots import MOST_SLOTS
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm.exit_codes import Exit
from pagetier.shm.process import Process
from pagetier.shm.protocol import BUILD, Attach
from pagetier.shm.segments import SegmentRequest, take
from refused_starts import fill, still_serves
from running_daemon import RunningDaemon

MISSING = 5  # descriptors, so that it can watch some processes but not all


def test_an_adopting_daemon_that_cannot_watch_all_processes_reclaims_nothing() -> None:
    """It ends, logs why, and leaves slots and pages to the next daemon."""
    with RunningDaemon("10MiB") as daemon, ExitStack() as stack:
        fill(daemon)
        clients = [stack.enter_context(daemon.client()) for _ in range(MOST_SLOTS)]
        assert len(daemon.slots()) == MOST_SLOTS
        connections = MOST_SLOTS
        most = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) - connections - MISSING
        daemon.kill()
        daemon._before = ["prlimit", f"--nofile={most}"]
        assert daemon.launch().wait() == Exit.REFUSED, daemon.log.read_text()
        line = daemon.log.read_text().splitlines()[-1]
        assert "cannot watch the process of slot" in line and ": Too many open files: see LimitNOFILE" in line
        daemon._before = []
        daemon.start()
        assert len(daemon.slots()) == MOST_SLOTS
        assert all(client.wait_attached(PATIENCE_S) and still_serves(client) for client in clients)


async def test_an_attachment_that_cannot_be_watched_takes_no_slot(name: str, tmp_path: Path) -> None:
    segments = take(SegmentRequest(name, SMALL, BUILD))
    service = Service(
        segments, Config(socket=tmp_path / "socket"), StatusPublisher(segments.owner), asyncio.get_running_loop()
    )
    try:
        service.open_to_engines()
        unwatchable = Peer(Process.of(os.getpid()), os.getuid(), frozenset(), pidfd=-1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            service.attach(unwatchable, Attach(BUILD, 1, "test"))
        assert segments.owner.attachments() == []
    finally:
        service.close()
        segments.remove()
