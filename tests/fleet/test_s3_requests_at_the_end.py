"""Requests of S3 that are on their way when a question fails, or when the daemon is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from eventually import PATIENCE_S, eventually
from fleet_host import OPEN_S, FleetHost, keys_of, pages_of
from fleet_questions import hit_in_fleet, located
from hanging_s3 import HangingS3, hanging_s3
from pagetier.shm._core import KEY_BYTES
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.object_store import StoreSettings
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.fleet.s3_object_store import S3ObjectStore

SIZE = 50_000
NAMES = [f"space/{number}" for number in range(64)]


@pytest.fixture
def server(credentials: None) -> Iterator[HangingS3]:
    with hanging_s3() as server:
        yield server


def opened(server: HangingS3) -> S3ObjectStore:
    parameters = {"endpoint": server.url.partition("endpoint=")[2]}
    memory = memoryview(bytearray(1))
    return S3ObjectStore(
        StoreSettings(netloc="pages", path="hosts", parameters=parameters, memory=memory, timeout_s=OPEN_S)
    )


def test_a_failed_question_leaves_the_loop_open_into_which_other_requests_answer(
    server: HangingS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(server)
    loops: list[asyncio.AbstractEventLoop] = []
    head = store._obstore.head_async

    def recorded(bucket: Any, name: str) -> Any:
        loops.append(asyncio.get_running_loop())
        return head(bucket, name)

    monkeypatch.setattr(store._obstore, "head_async", recorded)
    server.failing = NAMES[-1]
    with pytest.raises(TierError, match="answered HEAD with 500"):
        store.sizes(NAMES)
    assert loops and not any(loop.is_closed() for loop in loops)
    store.close()
    assert not any(loop.is_running() for loop in loops)
    with pytest.raises(TierError, match="the store is closed"):
        store.sizes(NAMES)


def test_a_question_that_hangs_ends_with_its_store(server: HangingS3) -> None:
    store = opened(server)
    server.hangs = frozenset({"HEAD"})
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(store.sizes, NAMES)
        assert eventually(lambda: "HEAD" in server.hung)
        store.close()
        with pytest.raises(TierError, match="closed before it answered"):
            asking.result()


def test_a_daemon_stops_while_all_requests_hang(server: HangingS3) -> None:
    with ExitStack() as stack:
        host = FleetHost(server.url, stack, "--set", "remote.timeout=60s", "--set", "remote.ask_timeout=30s")
        server.hangs = frozenset({"PUT"})
        assert host.client.store(keys_of("write", 4), pages_of(4, SIZE)).stored == 4
        assert eventually(lambda: "PUT" in server.hung, OPEN_S)
        server.hangs, server.object_bytes = frozenset({"PUT", "GET"}), HEADER_BYTES + SIZE
        hit = hit_in_fleet(host.client, keys_of("read", 4), OPEN_S)
        assert hit is not None and len(hit.keys) == 4 * KEY_BYTES
        _prefetch = host.client.prefetch(hit, timeout=PATIENCE_S)
        assert eventually(lambda: "GET" in server.hung, OPEN_S)
        server.hangs |= {"HEAD"}
        _question = located(host.client, keys_of("ask", 4))
        assert eventually(lambda: "HEAD" in server.hung, OPEN_S)
        assert host.daemon.stop() == 0
        log = host.daemon.log.read_text()
        assert "Traceback" not in log and "Event loop" not in log
