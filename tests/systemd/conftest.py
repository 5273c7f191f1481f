"""One machine with the service installed for all tests of a pytest worker.

Each test starts from the initial state.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service_world import ServiceWorld
from systemd_machine import Machine, skip_reason


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Yields a booted machine."""
    reason = skip_reason()
    if reason:
        pytest.skip(reason)
    with Machine() as machine:
        yield machine


@pytest.fixture(scope="session")
def installed(machine: Machine) -> ServiceWorld:
    """Returns the service, installed by `pagetier unit install`."""
    world = ServiceWorld(machine)
    world.install()
    return world


@pytest.fixture
def world(installed: ServiceWorld) -> Iterator[ServiceWorld]:
    """Yields the service, stopped and with its initial configuration. Asserts at the end that nothing of it is left."""
    installed.begin()
    yield installed
    installed.end()
