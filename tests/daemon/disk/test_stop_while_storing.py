"""Tests in virtual time that a stop of the disk tier ends soon, although an engine keeps storing."""

from __future__ import annotations

import asyncio
import os
import struct
from hashlib import sha256
from pathlib import Path

import pytest

from numbered_pages import FRAME, session_of, write_page
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.status.disk_report import Standing
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import WriteRule, answer_columns, page_requests
from pagetier.shm.page_rows import PAGES_TO_WRITE
from pagetier.shm.protocol import Reserve, Space
from pagetier.shm.segments import Segments
from pagetier.tiers.worker_protocol import Command, Stored, Sync, Synced, Write, Wrote
from virtual_time_loop import OwnTimeLoop

SPACE = Space(sha256(b"space").digest(), "model 00112233", 16)
WRITE_S, SYNC_S = 0.01, 0.06
EVERY_S = 0.03  # less than a sync takes: there is always a page that the last sync did not cover
TIMEOUT_S = 30.0


class StoringEngine:
    """An engine that stores a page every 30 ms until it is cancelled."""

    def __init__(self, segments: Segments, service: Service) -> None:
        self._service = service
        self._slot = segments.owner.attach(os.getpid(), 0, 0, 1, "engine")
        self.session = session_of(segments.slot_descriptors(self._slot), self._slot)
        self.stored, self.reasons = 0, set[str]()

    async def run(self) -> None:
        """Stores."""
        while True:
            self.store()
            await loop_clock.pause(EVERY_S)

    def store(self) -> None:
        """Stores a page if it may."""
        key = sha256(b"%d" % self.stored).digest()
        pages = page_requests(key, struct.pack("<Q", FRAME))
        answer = self._service.reservations.reserve(self._slot, Reserve(1, SPACE, 0, 1, pages))
        _, entries, serials = answer_columns(answer.pages)
        if answer.reason:
            self.reasons.add(answer.reason)
            return
        write_page(self.session, entries, bytes(FRAME))
        assert self.session.publish(entries, serials, 0) == b"\1"
        self.stored += 1


def answer_late(service: Service, loop: OwnTimeLoop) -> None:
    """Opens the only device, whose worker takes its time for each command."""
    (device,) = service.disk._devices

    def send(command: Command) -> None:
        match command:
            case Write():
                written = bytes([Stored.DONE]) * PAGES_TO_WRITE.count(command.pages)
                loop.call_later(WRITE_S, device.hear, Wrote(command.number, written, "", 0))
            case Sync():
                loop.call_later(SYNC_S, device.hear, Synced(command.number, ""))
            case _:
                return

    service.segments.owner.disk_open(1000, WriteRule.THROUGH)
    device.started(service.segments.owner.attach(os.getpid(), 0, 1, 0, "disk tier"), send)
    device.begin(b"")
    device.note(standing=Standing.OPEN)


async def test_a_stop_does_not_wait_for_an_engine_that_keeps_storing(
    segments: Segments, virtual_time: OwnTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    options = DiskOptions(path=(Path("/d"),), size=(1 << 30,), write="through")
    service = Service(segments, Config(disk=options), StatusPublisher(segments.owner), virtual_time)
    engine = StoringEngine(segments, service)
    answer_late(service, virtual_time)
    storing = asyncio.create_task(engine.run())
    await loop_clock.pause(1.0)
    before, began = engine.stored, virtual_time.time()
    await service.disk.stop(TIMEOUT_S)
    took = virtual_time.time() - began
    await loop_clock.pause(1.0)
    storing.cancel()
    assert before > 30 and took < 1.0, took
    assert engine.stored == before and engine.reasons == {"the daemon is stopping"}
    assert not [record for record in caplog.records if "not known to be on disk" in record.message]
    engine.session.retire()
    service.close()
