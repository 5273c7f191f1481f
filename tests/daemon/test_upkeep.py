"""Tests what the daemon looks after once a second."""

from __future__ import annotations

import asyncio

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.schema import Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.daemon.upkeep import Upkeep
from pagetier.shm.segments import Segments
from virtual_time_loop import OwnTimeLoop


@pytest.mark.usefixtures("virtual_time")
async def test_each_step_runs_at_once_and_then_once_a_second() -> None:
    times: list[float] = []
    upkeep = Upkeep(lambda: times.append(loop_clock.now()))
    for _ in range(100):
        upkeep.run_when_due()
        await loop_clock.pause(0.03)
    assert times == pytest.approx([0.0, 1.02, 2.04])


async def test_a_step_that_fails_does_not_end_the_periodic_work(segments: Segments, virtual_time: OwnTimeLoop) -> None:
    times: list[float] = []
    errors: list[object] = []

    def fail_once() -> None:
        times.append(loop_clock.now())
        if len(times) == 1:
            raise OSError(24, "Too many open files")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    service = Service(segments, Config(), StatusPublisher(segments.owner), virtual_time)
    service.alive = fail_once
    await loop_clock.pause(1.12)
    service.close()
    assert times == pytest.approx([0.0, 1.0, 1.05, 1.1])
    assert [str(error) for error in errors] == ["[Errno 24] Too many open files"], "it is logged"
