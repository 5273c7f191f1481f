"""The daemon that processes die beside, and a check that no test leaves a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_threads import no_client_is_left
from daemon_turns import Turns
from keyed_pages import PAGE
from running_daemon import RunningDaemon

__all__ = ["no_client_is_left"]


@pytest.fixture
def turns() -> Iterator[Turns]:
    """Yields the turns of the daemon."""
    with Turns() as turns:
        yield turns


@pytest.fixture
def daemon(turns: Turns) -> Iterator[RunningDaemon]:
    """Yields a daemon with room for 64 pages. What a death releases is released by that: reservations last an hour."""
    hour = ("--constant", "store.reservation_timeout=3600")
    with RunningDaemon(str(64 * PAGE), str(PAGE), *hour, before=turns.before) as running:
        yield running
