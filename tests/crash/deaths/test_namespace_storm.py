"""Daemons are restarted in and out of namespaces at random, while engines in several namespaces live and die.

$TEST_RESTARTS sets the number of restarts: shards of a longer run differ in their seeds.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from herd import Herd
from placed_daemon import HERE, OWN_PIDS, PLACES, placed
from running_daemon import START_S
from seeded_random import chance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these namespaces")
RESTARTS = int(os.environ.get("TEST_RESTARTS", "6"))
BORN, KILLED = 4, 3  # at most, in each herd between two restarts
MOST = 6  # of a herd


def test_no_byte_and_no_slot_is_lost(tmp_path: Path) -> None:
    random, places = chance(), [HERE, *PLACES.values(), *[OWN_PIDS, PLACES["nested"], PLACES["time"]] * 2]
    with placed() as daemon, ExitStack() as stack:
        herds = [Herd(daemon.socket, tmp_path, *what) for what in (HERE, OWN_PIDS, PLACES["nested"])]
        for herd in herds:
            stack.callback(herd.end)
        for _ in range(RESTARTS):
            before = len(list(tmp_path.iterdir()))
            for herd in herds:
                alive = herd.do("breed", int(random.integers(1, BORN + 1)))
                herd.do("kill", max(int(random.integers(KILLED + 1)), alive - MOST))
            assert eventually(lambda before=before: len(list(tmp_path.iterdir())) > before, START_S)  # type: ignore[misc]
            place = places[int(random.integers(len(places)))]
            if random.integers(2):
                daemon.signal(signal.SIGUSR1)
                daemon.wait()
                daemon.follow(*place)
            else:
                daemon.move(*place)
        living = sum(herd.do("breed", 0) for herd in herds)
        assert eventually(lambda: len(daemon.taken()) == living, START_S), (daemon.taken(), living)
        stack.close()
        assert eventually(lambda: not daemon.taken(), START_S), daemon.log.read_text()
        assert {report.read_text() for report in tmp_path.iterdir()} == {"exact"}
