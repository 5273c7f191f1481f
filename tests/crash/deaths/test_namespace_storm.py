"""Daemons are restarted in and out of namespaces at random, while engines in several namespaces live and die.

$TEST_RESTARTS sets the number of restarts: shards of a longer run differ in their seeds. With $TEST_STORM_LOG a line is
added to this file after each restart.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from eventually import eventually
from herd import Herd
from placed_daemon import HERE, OWN_PIDS, PLACES, PlacedDaemon, placed
from seeded_random import chance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these namespaces")
RESTARTS = int(os.environ.get("TEST_RESTARTS", "20"))
PLACES_TO_GO = [HERE, *PLACES.values(), *[OWN_PIDS, PLACES["nested"], PLACES["time"]] * 2]
LOG = Path(os.environ.get("TEST_STORM_LOG") or os.devnull)
BORN, KILLED = 5, 3  # at most, in each herd between two restarts
MOST = 5  # of a herd
SETTLED = 0.125  # of the restarts: after them every slot is compared with the engines that live


class Storm:
    """The herds around one daemon, and what they found."""

    def __init__(self, daemon: PlacedDaemon, reports: Path, random: np.random.Generator, stack: ExitStack) -> None:
        self._daemon, self._reports, self._random = daemon, reports, random
        self._herds = [Herd(daemon.socket, reports, *what) for what in (HERE, OWN_PIDS, PLACES["nested"])]
        for herd in self._herds:
            stack.callback(herd.end)
        self.restarts = self.born = 0

    def breed_and_kill(self) -> None:
        """Engines are born, some die at any point, and an engine that is born after that compares pages."""
        for herd in self._herds:
            self._breed(herd, int(self._random.integers(1, BORN)))
            herd.do("kill", max(int(self._random.integers(KILLED + 1)), herd.do("breed", 0) - MOST + 1))
        before = self.sum_of("compared")
        for herd in self._herds:
            self._breed(herd, 1)
        assert eventually(lambda: self.sum_of("compared") >= before + len(self._herds)), self.found()

    def restart(self) -> None:
        """The daemon crashes or hands over, and the next one starts elsewhere."""
        place = PLACES_TO_GO[int(self._random.integers(len(PLACES_TO_GO)))]
        if self._random.integers(2):
            self._daemon.signal(signal.SIGUSR1)
            self._daemon.wait()
            self._daemon.follow(*place)
        else:
            self._daemon.move(*place)
        self.restarts += 1
        with LOG.open("a") as log:
            log.write(f"{self.restarts} restarts, {self.born} engines, {self.sum_of('pages')} pages, now in {place}\n")

    def assert_no_slot_is_lost(self) -> None:
        """Every engine that lives attaches again, and every slot of a dead one is free."""
        living = self.sum_of("breed")
        assert eventually(lambda: len(self._daemon.taken()) == living), (self._daemon.taken(), living)

    def found(self) -> list[str]:
        """Returns the reports of engines that failed."""
        return [report.read_text() for report in self._reports.iterdir()]

    def sum_of(self, verb: str) -> int:
        """Returns the sum of the answers of all herds."""
        return sum(herd.do(verb, 0) for herd in self._herds)

    def _breed(self, herd: Herd, number: int) -> None:
        herd.do("breed", number)
        self.born += number


@pytest.mark.parametrize("storm_number", range(3))
def test_no_byte_and_no_slot_is_lost(storm_number: int, tmp_path: Path) -> None:
    random = chance()
    cast("np.random.PCG64", random.bit_generator).advance(storm_number << 64)
    with placed() as daemon, ExitStack() as stack:
        storm = Storm(daemon, tmp_path, random, stack)
        for _ in range(RESTARTS):
            storm.breed_and_kill()
            storm.restart()
            assert storm.found() == []
            if random.random() < SETTLED:
                storm.assert_no_slot_is_lost()
        storm.assert_no_slot_is_lost()
        assert storm.sum_of("pages")
        stack.close()
        assert eventually(lambda: not daemon.taken()), daemon.log.read_text()
        assert storm.found() == []
