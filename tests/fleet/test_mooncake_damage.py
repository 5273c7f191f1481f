"""Mooncake's memory, which its open ports let any machine read and write: ciphertext and misses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fleet_pages import OpenedFleet, opened_fleet, with_key
from mooncake_peer import MooncakePeer, listening_endpoints
from pagetier.tiers.base import Outgoing, ReadOutcome
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import content_of, outgoings
from store_servers import MooncakeServers

SIZE = 100_000
SAMPLE = 16
PAGES = outgoings(range(6), SIZE)


class Place(NamedTuple):
    """Where the node has an object."""

    endpoint: str
    address: int
    length: int


@pytest.fixture(params=["plain", "key"])
def opened(
    request: pytest.FixtureRequest, mooncake: MooncakeServers, prefix: str, tmp_path: Path
) -> Iterator[OpenedFleet]:
    options = FleetOptions(url=mooncake.url, prefix=prefix, trusted=True, buffers=4 << 20, timeout_s=20)
    with opened_fleet(options if request.param == "plain" else with_key(options, tmp_path)) as opened:
        opened.store_all(*PAGES)
        yield opened


@pytest.fixture(scope="module")
def peer(has_mooncake: None) -> MooncakePeer:
    return MooncakePeer()


def place_of(opened: OpenedFleet, page: Outgoing) -> Place:
    name = opened.name(page)
    (replica,) = opened.store._client.batch_get_replica_desc([name])[name]  # type: ignore[attr-defined]
    found = replica.get_memory_descriptor().buffer_descriptor
    return Place(found.transport_endpoint, found.buffer_address, found.size)


def shows(memory: bytes, page: Outgoing) -> bool:
    """Returns whether memory contains a part of a page's bytes."""
    content = content_of(page.key, page.size)
    return any(content[at : at + SAMPLE] in memory for at in range(0, len(content) - SAMPLE, 4096))


def test_a_peer_that_reads_an_object_sees_ciphertext(opened: OpenedFleet, peer: MooncakePeer) -> None:
    memory = peer.read(*place_of(opened, PAGES[0]))
    assert memory is not None and memory.startswith(b"ptfleet")
    assert shows(memory, PAGES[0]) is not bool(opened.options.key_file)


def test_a_peer_that_reads_the_port_of_the_worker_sees_ciphertext(opened: OpenedFleet, peer: MooncakePeer) -> None:
    assert opened.outcome(PAGES[0]) is ReadOutcome.EXACT
    base = opened.store._base  # type: ignore[attr-defined]
    read = [peer.read(endpoint, base, HEADER_BYTES + SIZE) for endpoint in listening_endpoints()]
    (memory,) = [memory for memory in read if memory is not None]
    assert memory.startswith(b"ptfleet")
    assert shows(memory, PAGES[0]) is not bool(opened.options.key_file)


def test_what_a_peer_writes_is_a_miss_and_counted(opened: OpenedFleet, peer: MooncakePeer) -> None:
    inside, short, other, header, exact, zero = PAGES
    peer.write(place_of(opened, inside).endpoint, place_of(opened, inside).address + 20_000, os.urandom(4096))
    end = HEADER_BYTES + SIZE - 50_000
    peer.write(place_of(opened, short).endpoint, place_of(opened, short).address + end, bytes(50_000))
    peer.write(*place_of(opened, other)[:2], opened.object(exact))
    peer.write(*place_of(opened, header)[:2], os.urandom(HEADER_BYTES))
    peer.write(*place_of(opened, zero)[:2], bytes(HEADER_BYTES + SIZE))
    assert opened.outcome(exact) is ReadOutcome.EXACT
    for page in (inside, short, other, header, zero):
        assert opened.outcome(page) in (ReadOutcome.DAMAGED, ReadOutcome.ABSENT)
    state = opened.fleet.state()
    assert state.damaged + state.foreign == 5, state


def test_what_a_peer_writes_to_the_worker_changes_no_page(opened: OpenedFleet, peer: MooncakePeer) -> None:
    """Everything is verified where it stays: the peer writes to the bounce buffer while its bytes are copied."""
    base = opened.store._base  # type: ignore[attr-defined]
    (endpoint,) = [one for one in listening_endpoints() if peer.read(one, base, SAMPLE) is not None]
    get = opened.store.get

    def got(name: str, into: memoryview) -> int | memoryview:
        length = get(name, into)
        peer.write(endpoint, base + 50_000, b"?" * 4096)
        return length

    opened.store.get = got  # type: ignore[method-assign]
    assert opened.outcome(PAGES[0]) is ReadOutcome.DAMAGED
    opened.store.get = get  # type: ignore[method-assign]
    assert opened.outcome(PAGES[1]) is ReadOutcome.EXACT
