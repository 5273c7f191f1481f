"""A daemon for all tests of a module, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from disk_daemon import DiskDaemon
from disk_stores import settings_of


def _running() -> Iterator[DiskDaemon]:
    """Runs a daemon with a disk, which writes pages when they are evicted or saved."""
    with DiskDaemon(1024, "256MiB") as running:
        running.wait_open()
        yield running


shared_daemon = pytest.fixture(_running, scope="module", name="shared_daemon")
own_daemon = pytest.fixture(_running, name="own_daemon")
"""A daemon of one test: for seconds after a save() it writes all pages at once."""


@pytest.fixture
def daemon(shared_daemon: DiskDaemon) -> Iterator[DiskDaemon]:
    """Drops all pages after the test."""
    yield shared_daemon
    shared_daemon.drop_all_pages()


@pytest.fixture(scope="module")
def compressing() -> Iterator[DiskDaemon]:
    """Runs such a daemon that compresses pages on disk."""
    with DiskDaemon(1024, "256MiB", *settings_of("compressed")) as running:
        yield running
