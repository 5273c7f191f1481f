"""A worker that is a service of its own and does not come."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.workers.worker_link import PeerWorkers


@pytest.mark.usefixtures("virtual_time")
async def test_after_ten_seconds_it_is_said_that_no_worker_came(tmp_path: Path) -> None:
    """As docs/fleet.md says."""
    said = list[str]()
    workers = PeerWorkers(tmp_path / "remote.sock", said.append)
    waits = asyncio.get_running_loop().create_task(workers.next())
    await loop_clock.pause(9.9)
    assert not said
    await loop_clock.pause(0.2)
    assert said == [f"no worker came to {tmp_path}/remote.sock: start pagetierd-remote.service"]
    waits.cancel()
    with suppress(asyncio.CancelledError):
        await waits
    workers.close()
