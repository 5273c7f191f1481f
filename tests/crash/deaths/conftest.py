"""The daemon that processes die beside, and a check that no test leaves a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_threads import no_client_is_left
from keyed_pages import PAGE
from running_daemon import RunningDaemon

__all__ = ["no_client_is_left"]


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon with room for 64 pages. What a death releases is released by that: reservations last an hour."""
    with RunningDaemon(str(64 * PAGE), str(PAGE), "--constant", "store.reservation_timeout=3600") as running:
        yield running
