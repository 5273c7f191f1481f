"""One machine for all tests of a worker of pytest's, with the service installed; each test has it as if it were new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service_world import World
from systemd_machine import Machine, why_not


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A booted machine."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Machine() as machine:
        yield machine


@pytest.fixture(scope="session")
def installed(machine: Machine) -> World:
    """The service installed by `pagetier unit install`."""
    world = World(machine)
    world.install()
    return world


@pytest.fixture
def world(installed: World) -> Iterator[World]:
    """The service stopped, with its first configuration; at the end nothing of it is left, whatever was done."""
    installed.begin()
    yield installed
    installed.end()
