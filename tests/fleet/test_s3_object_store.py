"""Tests of a fleet in a real S3 server."""

from __future__ import annotations

import asyncio

import pytest

from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS, names_of, opened_fleet
from hanging_s3 import hanging_s3, refusal
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.object_store import StoreSettings
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.fleet.s3_object_store import S3ObjectStore
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import outgoings
from store_servers import S3Server


@pytest.fixture
def options(s3: S3Server, prefix: str) -> FleetOptions:
    return FleetOptions(url=s3.url, prefix=prefix, buffers=BUFFERS, timeout_s=60)


class TestS3(StoreConformance):
    """s3://"""


@pytest.mark.parametrize("stored", [0, 1, 500, 1024])
def test_a_long_chain_takes_few_requests(options: FleetOptions, monkeypatch: pytest.MonkeyPatch, stored: int) -> None:
    pages = outgoings(range(1024), 50)
    with opened_fleet(options) as opened:
        store = opened.store
        assert isinstance(store, S3ObjectStore)
        asked: list[str] = []
        length = store._length

        async def counted(name: str, permits: asyncio.Semaphore) -> int:
            asked.append(name)
            return await length(name, permits)

        opened.store_all(*pages[:stored])
        monkeypatch.setattr(store, "_length", counted)
        assert list(opened.fleet.locate(names_of(pages))) == [50] * stored + [0] * (1024 - stored)
        assert len(asked) <= 32 + 2 * 15


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    with pytest.raises(TierError, match="there is no bucket nowhere: create it"):
        open_fleet(FleetOptions(url=f"s3://nowhere?endpoint={s3.endpoint}"))


def test_wrong_credentials_are_one_line(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    with pytest.raises(TierError, match="AWS_ACCESS_KEY_ID") as raised:
        open_fleet(FleetOptions(url=s3.url))
    assert "\n" not in str(raised.value)


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TierError, match=r"pages cannot be reached at 127\.0\.0\.1:9: Connection refused$") as raised:
        open_fleet(FleetOptions(url="s3://pages?endpoint=http://127.0.0.1:9"))
    assert "\n" not in str(raised.value)


def test_the_url_for_people_has_no_parameters(options: FleetOptions) -> None:
    with opened_fleet(options) as opened:
        assert opened.fleet.state().url == "s3://pages/hosts"


def put(answer: bytes) -> bool:
    """Returns what the store says of a put that is answered so."""
    with hanging_s3() as server:
        endpoint, memory = {"endpoint": server.url.partition("endpoint=")[2]}, memoryview(bytearray(4))
        store = S3ObjectStore(StoreSettings(netloc="pages", path="", parameters=endpoint, memory=memory, timeout_s=60))
        server.failing, server.failure = "space/page", answer
        try:
            return store.put("space/page", memory)
        finally:
            store.close()


def test_a_put_that_s3_wants_repeated_is_a_failure_and_no_object_of_another_host(credentials: None) -> None:
    """The other request may be a delete, or a put that fails."""
    assert put(refusal("412 Precondition Failed", "PreconditionFailed")) is False
    for code in ("ConditionalRequestConflict", "OperationAborted"):
        with pytest.raises(TierError, match=f"pages answered PUT with 409 Conflict, {code}$"):
            put(refusal("409 Conflict", code))


def test_a_bucket_that_is_gone_is_named(credentials: None) -> None:
    with pytest.raises(TierError, match="there is no bucket pages: create it, or correct"):
        put(refusal("404 Not Found", "NoSuchBucket"))
