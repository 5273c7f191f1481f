"""Where workers come from: a service that does not come, and children that are started ahead of their use."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from open_descriptors import open_descriptors
from pagetier.daemon.common import loop_clock
from pagetier.daemon.workers import worker_link
from pagetier.daemon.workers.worker_link import ChildLink, ChildWorkers, PeerWorkers
from process_states import children_of


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


async def test_children_that_were_started_ahead_are_used_first_and_the_others_leave_nothing() -> None:
    before, descriptors = children_of(os.getpid()), open_descriptors()
    early, workers = ChildWorkers({}), ChildWorkers({})
    early.start_ahead(3)
    ahead = set(children_of(os.getpid())).difference(before)
    assert len(ahead) == 3
    workers.take_over(early)
    early.close()
    links = [await workers.next() for _ in range(2)]
    assert {link.process.pid for link in links} < ahead
    workers.close()
    workers.close()
    assert {link.process.pid for link in links} == set(children_of(os.getpid())).difference(before)
    links.append(await workers.next())
    assert links[-1].process.pid not in ahead
    for link in links:
        assert isinstance(link, ChildLink)
        link.discard()
    assert children_of(os.getpid()) == before
    assert open_descriptors() <= descriptors


async def test_a_child_that_cannot_be_started_ahead_is_started_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    workers = ChildWorkers({})
    with monkeypatch.context() as patch:
        patch.setattr(worker_link, "_start", refuse)
        workers.start_ahead(2)
        with pytest.raises(OSError, match="Too many open files"):
            await workers.next()
    link = await workers.next()
    assert isinstance(link, ChildLink)
    link.discard()
