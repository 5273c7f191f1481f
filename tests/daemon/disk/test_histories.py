"""Tests that a page on disk keeps what is known of its uses, in a real tier and across daemons."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from core_records import histories
from eventually import PATIENCE_S
from keyed_pages import PAGE, found, prompt, store
from pagetier.shm._core import HISTORY_BYTES, NO_ENTRY
from pagetier.tiers.base import Outgoing, StoredPages
from pagetier.tiers.disk.file_format import NO_HISTORY
from running_daemon import RunningDaemon
from store_pages import outgoings, small_tier

KEYS = prompt(1, pages=6)
USES = 3


def with_disk(folder: Path, policy: str) -> RunningDaemon:
    sizes = ("--disk-path", str(folder), "--disk-size", "64MiB", "--set", "disk.write=evict")
    return RunningDaemon("4MiB", str(PAGE), "--set", f"evict.policy={policy}", *sizes)


def known(daemon: RunningDaemon) -> list[tuple[int, bool]]:
    """Returns the uses of each page, and whether the page before it is known."""
    index = os.open(f"/dev/shm/{daemon.name}.index", os.O_RDONLY)
    rows = histories(index, daemon.header())
    os.close(index)
    return [(int(row["uses"]), bool(row["parent"] != NO_ENTRY)) for row in rows if row["uses"]]


def use(daemon: RunningDaemon) -> None:
    """Stores the pages, or finds that they are there: both are a use."""
    with daemon.client() as client:
        store(client, KEYS)


@pytest.mark.parametrize("policy", ["cadence", "lru"])
def test_a_new_daemon_knows_the_uses_of_the_pages_on_disk(tmp_path: Path, policy: str) -> None:
    with with_disk(tmp_path / "disk", policy) as daemon:
        for _ in range(USES):
            use(daemon)
        daemon.stop()
        daemon.start()
        daemon.wait_disk_open()
        assert daemon.header().disk_pages == len(KEYS)
        assert sorted(known(daemon)) == ([(USES, False), *[(USES, True)] * 5] if policy == "cadence" else [])
        with daemon.client() as client:
            assert found(client, KEYS, timeout=PATIENCE_S) == len(KEYS)
        use(daemon)
        assert sorted(known(daemon)) == ([(USES + 1, False), *[(USES + 1, True)] * 5] if policy == "cadence" else [])


def listed(parts: Iterator[StoredPages]) -> dict[bytes, bytes]:
    """Returns the history of each page in a tier."""
    return {page.key: page.history for part in parts for page in part}


def test_a_tier_returns_the_histories_that_were_written(tmp_path: Path) -> None:
    pages = [
        Outgoing(page.key, page.space, page.size, page.stamp, page.frames, bytes([number + 1]) * HISTORY_BYTES)
        for number, page in enumerate(outgoings(range(20)))
    ]
    pages += outgoings(range(20, 24))
    tier = small_tier(tmp_path)
    tier.write([], pages)
    tier.close()
    tier = small_tier(tmp_path)
    assert listed(tier.contents()) == {page.key: page.history for page in pages}
    assert {page.history for page in pages[20:]} == {NO_HISTORY}
    tier.close()
