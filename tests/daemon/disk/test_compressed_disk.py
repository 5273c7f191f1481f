"""Tests a disk tier with compressed pages in a real daemon."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from disk_daemon import FRAME, FRAMES, DiskDaemon
from disk_stores import settings_of
from eventually import PATIENCE_S
from kv_pages import kv_page
from pagetier.client import Client, Keys, Namespace
from pagetier.daemon.stats.size_advice import effective_frames
from pagetier.daemon.status.disk_report import DeviceReport
from pagetier.tiers.capacity import frames_under
from running_daemon import namespace
from store_pages import bytes_in
from two_devices import TwoDevices

MIB = 1 << 20
SIZE = 16 * MIB
BATCH = FRAMES // 2
OTHERS = Namespace(model="others", dtype="float32", page_tokens=16)
PLAIN = frames_under("files", SIZE, 2, FRAME)
"""The pages for which there is room if they are not compressed."""


def compressing(disk: Path | None = None, size: int = SIZE, *more: str) -> DiskDaemon:
    return DiskDaemon(FRAMES, str(size), *settings_of("compressed"), *more, disk=disk)


def pages_of(first: int, count: int) -> Keys:
    return namespace().keys(range(first * 1000, first * 1000 + 16 * count))


def page(number: int) -> bytes:
    return kv_page("bf16", FRAME, number)


def store_all(daemon: DiskDaemon, client: Client, batches: range) -> None:
    """Stores batches of pages, each of which has to be on disk before the next one comes."""
    for batch in batches:
        client.store(pages_of(batch, BATCH), [page(batch * BATCH + at) for at in range(BATCH)])
        assert not daemon.save().trouble, daemon.reported()


def found_exact(daemon: DiskDaemon, client: Client, batch: int) -> int:
    """Returns how many pages of a batch are found. Asserts that their bytes are right."""
    out = np.zeros((BATCH, FRAME), np.uint8)
    with client.match(pages_of(batch, BATCH)) as match:
        loaded = client.load(match, out, timeout=PATIENCE_S)
    for at in range(loaded):
        assert out[at].tobytes() == page(batch * BATCH + at), daemon.reported()
    return loaded


def device_of(daemon: DiskDaemon) -> DeviceReport:
    (device,) = daemon.report().devices
    return device


def test_a_third_more_pages_fit_under_the_cap(tmp_path: Path) -> None:
    batches = range(PLAIN * 3 // 2 // BATCH)
    with compressing(tmp_path / "disk") as daemon, daemon.client() as client:
        store_all(daemon, client, batches)
        header = daemon.header()
        assert header.disk_evicted > 0, "the disk is full"
        assert header.disk_pages > 1.25 * PLAIN
        assert header.disk_used_frames <= header.disk_frames
        assert bytes_in(tmp_path / "disk") <= SIZE
        assert daemon.until(lambda disk: disk.devices[0].pages == header.disk_pages)
        device = device_of(daemon)
        assert device.slot_bytes == FRAME // 4
        assert 1.3 * device.stored_bytes < device.bytes == header.disk_bytes
        (space,) = daemon.snapshot().namespaces
        assert (space.disk_bytes, space.disk_stored) == (device.bytes, device.stored_bytes)
        assert re.search(r"compressed *tokens a page\n.*\n.* 1\.3\d x +16", daemon.pagetier("stats").output)
        assert effective_frames(header) > 1.3 * header.disk_frames, "pagetier advise counts what fits"
        assert re.search(r" of .*, 1\.3\d x compressed", daemon.pagetier("stats", "--short").output)
        assert found_exact(daemon, client, batches[-1]) == BATCH
        daemon.stop()
        daemon.start()
        daemon.wait_open()
        assert daemon.header().disk_pages == header.disk_pages
        assert daemon.header().disk_used_frames == header.disk_used_frames
    with compressing(tmp_path / "disk") as daemon, daemon.client() as client:
        assert [found_exact(daemon, client, batch) for batch in batches[-8:]] == [BATCH] * 8


def test_a_worker_that_dies_loses_no_page_and_no_count(tmp_path: Path) -> None:
    with compressing(tmp_path / "disk") as daemon, daemon.client() as client:
        store_all(daemon, client, range(6))
        before = daemon.header()
        daemon.kill_worker()
        daemon.wait_open(restarts=1)
        after = daemon.header()
        assert (after.disk_pages, after.disk_used_frames) == (before.disk_pages, before.disk_used_frames)
        assert daemon.findings() == []
        assert found_exact(daemon, client, 0) == BATCH


def test_each_of_two_devices_counts_its_own_slots() -> None:
    with TwoDevices(*settings_of("compressed"), size=str(SIZE // 2)) as daemon, daemon.client() as client:
        store_all(daemon, client, range(PLAIN * 3 // 2 // BATCH))
        assert daemon.header().disk_pages > 1.2 * PLAIN
        assert daemon.until(lambda disk: all(1.3 * each.stored_bytes < each.bytes for each in disk.devices))
        assert daemon.findings() == []
        daemon.kill_device(0)
        daemon.wait_open(restarts=1)
        assert daemon.findings() == []
        assert sum(device.pages for device in daemon.report().devices) > 1.1 * PLAIN


def test_a_quota_counts_what_pages_take_compressed(tmp_path: Path) -> None:
    noise = [np.random.default_rng([61, number]).bytes(FRAME) for number in range(BATCH)]
    capping = ("--set", "quota=model: disk 0-0.5")
    with compressing(tmp_path / "disk", SIZE, *capping) as daemon, daemon.client() as client:
        store_all(daemon, client, range(PLAIN // BATCH))
        header = daemon.header()
        assert header.disk_used_frames <= header.disk_frames // 2, "its maximum"
        assert header.disk_pages > 1.2 * PLAIN // 2
        client.store(OTHERS.keys(range(16 * BATCH)), noise)
        assert not daemon.save().trouble, daemon.reported()
        capped, others = sorted(daemon.snapshot().namespaces, key=lambda space: space.label != namespace().name)
        assert 1.3 * capped.disk_stored < capped.disk_bytes == header.disk_bytes
        assert others.disk_stored == others.disk_bytes == BATCH * FRAME
        assert daemon.findings() == []


def test_a_smaller_disk_keeps_what_fits_compressed(tmp_path: Path) -> None:
    with compressing(tmp_path / "disk") as daemon, daemon.client() as client:
        store_all(daemon, client, range(PLAIN // BATCH))
        result = daemon.pagetier("resize", "--disk-size", str(SIZE // 2), "--yes")
        assert not result.exit_code, result.output
        daemon.wait_open()
        assert daemon.until(lambda disk: disk.cap == SIZE // 2 and disk.standing.value == "open")
        header = daemon.header()
        assert header.disk_pages > 1.2 * frames_under("files", SIZE // 2, 2, FRAME)
        assert bytes_in(tmp_path / "disk") <= SIZE // 2
        assert found_exact(daemon, client, PLAIN // BATCH - 1) == BATCH


def test_pages_that_cannot_be_compressed_are_stored_as_they_are(tmp_path: Path) -> None:
    with compressing(tmp_path / "disk") as daemon:
        daemon.fill(2 * FRAMES)
        header = daemon.header()
        assert header.disk_pages == header.disk_used_frames == 2 * FRAMES


def test_a_change_of_the_setting_with_fresh_empties_the_tier_and_says_so(tmp_path: Path) -> None:
    with compressing(tmp_path / "disk") as daemon, daemon.client() as client:
        store_all(daemon, client, range(2))
    with DiskDaemon(FRAMES, str(SIZE), "--fresh", disk=tmp_path / "disk") as daemon:
        assert "rebuilt empty: compressed pages are there, and disk.compress is off" in daemon.report().opened
        daemon.fill(4)
    with compressing(tmp_path / "disk", SIZE, "--fresh") as daemon:
        assert "rebuilt empty: pages are not compressed there, and disk.compress is on" in daemon.report().opened


def test_a_folder_of_an_earlier_build_stays_as_it_was(tmp_path: Path) -> None:
    """Without the setting the state file and the records are those of format 2."""
    with DiskDaemon(FRAMES, str(SIZE), disk=tmp_path / "disk") as daemon:
        daemon.fill(4)
    state = msgspec.json.decode((tmp_path / "disk" / "state").read_bytes())
    assert (state["format"], state["frame_bytes"]) == (2, FRAME)
    assert state.keys() == {"format", "frame_bytes", "environments", "boot", "clean", "last_sync", "store"}
