"""The daemon that processes die beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyed_pages import PAGE
from running_daemon import RunningDaemon


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon with room for 64 pages."""
    with RunningDaemon(str(64 * PAGE), str(PAGE)) as running:
        yield running
