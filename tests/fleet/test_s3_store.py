"""Tests of a fleet in a real S3 server."""

from __future__ import annotations

import pytest

from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS, opened_fleet
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_servers import S3Server


@pytest.fixture
def options(s3: S3Server, prefix: str) -> FleetOptions:
    return FleetOptions(url=s3.url, prefix=prefix, buffers=BUFFERS, timeout_s=20)


class TestS3(StoreConformance):
    """s3://"""


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    with pytest.raises(TierError, match="there is no bucket nowhere: create it"):
        open_fleet(FleetOptions(url=f"s3://nowhere?endpoint={s3.endpoint}"))


def test_wrong_credentials_are_one_line(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    with pytest.raises(TierError, match="AWS_ACCESS_KEY_ID") as raised:
        open_fleet(FleetOptions(url=s3.url))
    assert "\n" not in str(raised.value)


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TierError, match="cannot be opened") as raised:
        open_fleet(FleetOptions(url="s3://pages?endpoint=http://127.0.0.1:9"))
    assert "\n" not in str(raised.value)


def test_the_url_for_people_has_no_parameters(options: FleetOptions) -> None:
    with opened_fleet(options) as opened:
        assert opened.fleet.state().url == "s3://pages/hosts"
