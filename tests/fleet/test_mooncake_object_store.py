"""Tests of a fleet in a real Mooncake Store: a master and a node."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs

from eventually import eventually
from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS, opened_fleet
from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import outgoings
from store_servers import MooncakeServers


@pytest.fixture
def options(mooncake: MooncakeServers, prefix: str) -> FleetOptions:
    return FleetOptions(url=mooncake.url, prefix=prefix, trusted=True, buffers=BUFFERS, timeout_s=20)


class TestMooncake(StoreConformance):
    """mooncake://"""


def test_pages_without_a_key_need_trust(options: FleetOptions) -> None:
    with pytest.raises(TierError, match=r"set remote.key_file, or trusted=yes"):
        open_fleet(structs.replace(options, trusted=False))


def test_a_master_that_is_not_there_is_one_line(mooncake: MooncakeServers) -> None:
    with pytest.raises(TierError, match=r"cannot be opened|cannot reach Mooncake's master") as raised:
        open_fleet(FleetOptions(url="mooncake://127.0.0.1:9?hostname=127.0.0.1", trusted=True))
    assert "\n" not in str(raised.value)


class Gate:
    """Mooncake's client, whose gets wait until they are let through, and are counted while they are in it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.opened = threading.Event()
        self.inside = self.most = 0

    def get_into(self, *arguments: Any) -> int:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.opened.wait(60)
            return int(self._client.get_into(*arguments))
        finally:
            with self._lock:
                self.inside -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize(("permit_s", "is_late"), [(60.0, False), (0.05, True)])
def test_half_of_the_cores_wait_for_bytes_unless_a_call_hangs(
    options: FleetOptions, permit_s: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mooncake's calls keep a core busy while they wait. A get that finds no permit begins after a moment."""
    monkeypatch.setattr("pagetier.tiers.fleet.mooncake_object_store._PERMIT_S", permit_s)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    pages = outgoings(range(5), 100_000)
    with opened_fleet(structs.replace(options, timeout_s=1000)) as opened, ThreadPoolExecutor(len(pages)) as readers:
        opened.store_all(*pages)
        gate = opened.store._client = Gate(opened.store._client)  # type: ignore[attr-defined]
        reads = [readers.submit(opened.outcome, page) for page in pages]
        assert eventually(lambda: gate.inside == (5 if is_late else 3))
        gate.opened.set()
        assert [read.result() for read in reads] == [ReadOutcome.EXACT] * len(pages)
    assert gate.most == (5 if is_late else 3)
