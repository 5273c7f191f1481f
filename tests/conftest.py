"""Configuration that all tests share."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import pytest

from own_host import have_own_host, have_own_mounts, report

# The libraries that plugins import start threads, and a process with threads cannot enter a user namespace.
if "PYTEST_XDIST_WORKER" in os.environ:
    have_own_mounts()
else:
    have_own_host()

pytest_plugins = ("injection.sweep", "proofs.selection", "virtual_clock")

FIRST: Final = ("systemd", "simulator", "crash")
"""Folders whose tests mostly wait or take longest: tests that compute run beside them, and short ones end a run.

One process boots the machine of the service for all of its tests, so these are the very first.
"""

# The environments of engines lack hypothesis. Health checks are off because a busy machine is slow at times.
with suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("pagetier", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("pagetier")


def pytest_report_header() -> str:
    """Returns whether the tests can see what else is on this machine."""
    return f"host: {report()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of FIRST first."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, folder in enumerate(FIRST) if folder in item.path.parts), len(FIRST))
