"""A daemon for all tests of a module, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from disk_daemon import DiskDaemon


@pytest.fixture(scope="module", name="shared_daemon")
def _shared_daemon() -> Iterator[DiskDaemon]:
    """Runs a daemon with a disk, which writes pages when they are evicted or saved."""
    with DiskDaemon(1024, "256MiB") as running:
        running.wait_open()
        yield running


@pytest.fixture
def daemon(shared_daemon: DiskDaemon) -> Iterator[DiskDaemon]:
    """Drops all pages after the test."""
    yield shared_daemon
    shared_daemon.drop_all_pages()
