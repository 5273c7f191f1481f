"""Tests what the daemon looks after once a second."""

from __future__ import annotations

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.upkeep import Upkeep


@pytest.mark.usefixtures("virtual_time")
async def test_each_step_runs_at_once_and_then_once_a_second() -> None:
    times: list[float] = []
    upkeep = Upkeep(lambda: times.append(loop_clock.now()))
    for _ in range(100):
        upkeep.run_when_due()
        await loop_clock.pause(0.03)
    assert times == pytest.approx([0.0, 1.02, 2.04])
