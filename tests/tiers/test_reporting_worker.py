"""Tests that a disk worker serves while it reports its pages, however slowly the daemon takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES
from pagetier.shm.page_rows import STORED_PAGES, StoredPage
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Catalogue, StoredPages, TierState
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel
from pagetier.tiers.worker.disk_worker import DiskWorker
from pagetier.tiers.worker_protocol import (
    Command,
    Complete,
    GetState,
    InventoryPart,
    Leave,
    Opened,
    Report,
    StateReport,
)


class _Tier:
    """A tier with two pages."""

    capacity, pages = 10, 2

    def state(self) -> TierState:
        return cast("TierState", None)

    def take_lookups(self) -> bytes | None:
        return None

    def contents(self) -> Iterator[StoredPages]:
        space = Space(bytes(KEY_BYTES), "test", 16)
        rows = (StoredPage(bytes([n]) * KEY_BYTES, bytes(HISTORY_BYTES), 1, 9 - n, 0) for n in range(2))
        yield StoredPages(STORED_PAGES.pack(rows), (space,))


class _SlowChannel:
    """A connection to a daemon that takes no part of the inventory until the test says so."""

    def __init__(self, *commands: Command) -> None:
        self._commands = iter(commands)
        self.takes = threading.Event()
        self.completed = threading.Event()
        self.sent: list[type[Report]] = []

    def send(self, report: Report) -> None:
        if isinstance(report, InventoryPart):
            self.takes.wait()
        self.sent.append(type(report))
        if isinstance(report, Complete):
            self.completed.set()

    def receive(self) -> Command | None:
        return next(self._commands, None)


def test_a_worker_serves_before_the_daemon_knows_all_pages() -> None:
    channel = _SlowChannel(GetState(), Leave())
    worker = DiskWorker(cast("Catalogue", _Tier()), cast("WorkerArena", None), cast("Channel", channel))
    worker.report()
    worker.serve()
    assert channel.sent == [Opened, StateReport]
    channel.takes.set()
    channel.completed.wait()
    assert channel.sent == [Opened, StateReport, InventoryPart, Complete]
