"""Tests of a fleet in a real Mooncake Store: a master and a node."""

from __future__ import annotations

import msgspec
import pytest

from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_servers import MooncakeServers


@pytest.fixture
def options(mooncake: MooncakeServers, prefix: str) -> FleetOptions:
    return FleetOptions(url=mooncake.url, prefix=prefix, trusted=True, buffers=BUFFERS, timeout_s=20)


class TestMooncake(StoreConformance):
    """mooncake://"""


def test_pages_without_a_key_need_trust(options: FleetOptions) -> None:
    with pytest.raises(TierError, match=r"set remote.key_file, or remote.trusted"):
        open_fleet(msgspec.structs.replace(options, trusted=False))


def test_a_master_that_is_not_there_is_one_line(mooncake: MooncakeServers) -> None:
    with pytest.raises(TierError, match=r"cannot be opened|cannot reach Mooncake's master") as raised:
        open_fleet(FleetOptions(url="mooncake://127.0.0.1:9?hostname=127.0.0.1", trusted=True))
    assert "\n" not in str(raised.value)
