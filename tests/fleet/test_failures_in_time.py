"""Stores, networks and workers fail while an engine works: it is served, and so are local pages.

The hosts and the store are network namespaces that veth devices connect.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

import numpy as np
import pytest

from eventually import eventually
from fleet_host import FleetHost, key_file, keys_of, pages_of
from network_hosts import STORE, Network, network, stopped, stuttering
from store_servers import MooncakeServers, S3Server, mooncake_servers, s3_server
from working_engine import WorkingEngine

PATIENT_S, HURRIED_S = 10.0, 0.2
SIZE, CHAINS = 100_000, 150
NEAR = pages_of(4, SIZE, 7)


def asks_within(seconds: float) -> str:
    return f"[remote]\ntimeout = 20\nask_timeout = {seconds}\n"


@contextlib.contextmanager
def hurried(host: FleetHost) -> Iterator[None]:
    """Gives a fleet that fails little time for answers. One that works is late, too, on a busy machine."""
    host.daemon.reload(asks_within(HURRIED_S))
    try:
        yield
    finally:
        host.daemon.reload(asks_within(PATIENT_S))


class Fleet(NamedTuple):
    """A store and two hosts; the second one is where the engine works."""

    net: Network
    server: S3Server | MooncakeServers
    first: FleetHost
    second: FleetHost

    def share_chains(self, name: str) -> WorkingEngine:
        """Stores chains of one page each in the fleet, and returns an engine that loads them on the other host."""
        content = pages_of(1, SIZE, len(name))
        for number in range(CHAINS):
            assert self.first.client.store(keys_of(f"{name}-{number}", 1), content).stored == 1
        self.first.wait_shared(CHAINS)
        return WorkingEngine(self.second, NEAR, name, content)


@pytest.fixture(scope="module")
def s3_fleet(tmp_path_factory: pytest.TempPathFactory, credentials: None) -> Iterator[Fleet]:
    with (
        network() as net,
        s3_server(tmp_path_factory.mktemp("s3"), STORE, net.store.enter) as server,
        hosts_of(net, server, lambda number: server.url) as fleet,
    ):
        yield fleet


@pytest.fixture(scope="module")
def mooncake_fleet(tmp_path_factory: pytest.TempPathFactory, has_mooncake: None) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("mooncake")
    more = ("--set", f"remote.key_file={key_file(folder)}")
    with (
        network() as net,
        mooncake_servers(folder, STORE, net.store.enter) as servers,
        hosts_of(net, servers, lambda number: servers.url_of(net.address(number)), *more) as fleet,
    ):
        yield fleet


@contextlib.contextmanager
def hosts_of(
    net: Network, server: S3Server | MooncakeServers, url: Callable[[int], str], *more: str
) -> Iterator[Fleet]:
    with ExitStack() as stack:
        hosts = [
            FleetHost(url(at), stack, *more, arena="64MiB", before=net.add_host().enter, config=asks_within(PATIENT_S))
            for at in range(2)
        ]
        first, second = hosts
        first.share("first", pages_of(20, SIZE))
        assert second.client.store(keys_of("near", len(NEAR)), NEAR).stored == len(NEAR)
        yield Fleet(net, server, first, second)
        assert [host.daemon.findings() for host in hosts] == [[], []]


@contextlib.contextmanager
def killed(fleet: Fleet) -> Iterator[None]:
    assert isinstance(fleet.server, S3Server)
    fleet.server.process.kill()
    try:
        yield
    finally:
        fleet.server.start()


def stopped_store(fleet: Fleet) -> AbstractContextManager[None]:
    assert isinstance(fleet.server, S3Server)
    return stopped(fleet.server.process.pid)


def stuttering_store(fleet: Fleet) -> AbstractContextManager[None]:
    assert isinstance(fleet.server, S3Server)
    return stuttering(fleet.server.process.pid)


def partitioned(fleet: Fleet) -> AbstractContextManager[None]:
    return fleet.net.partitioned(1)


def slow(fleet: Fleet) -> AbstractContextManager[None]:
    return fleet.net.slow(1)


@pytest.mark.parametrize("fault", [killed, stopped_store, stuttering_store, partitioned, slow])
def test_a_store_fails_while_an_engine_works(
    s3_fleet: Fleet, fault: Callable[[Fleet], AbstractContextManager[None]]
) -> None:
    host = s3_fleet.second
    engine = s3_fleet.share_chains(fault.__name__)
    assert eventually(lambda: host.asks)
    with engine:
        assert engine.loads_far(3), "the engine loads no pages of the fleet"
        with fault(s3_fleet), hurried(host):
            assert eventually(lambda: not host.asks), "the breaker opens"
            assert engine.goes_on()
        assert eventually(lambda: host.asks), "the breaker closes"
        assert engine.loads_far(), "pages of the fleet are loaded again"
    assert engine.near_misses == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_worker_fails_while_an_engine_works(s3_fleet: Fleet, number: signal.Signals) -> None:
    host = s3_fleet.second
    engine = s3_fleet.share_chains(f"worker {number.name}")
    restarts = host.report.restarts
    assert eventually(lambda: host.asks)
    with engine:
        assert engine.loads_far(3)
        os.kill(host.worker, number)
        assert eventually(lambda: host.report.restarts > restarts), host.report
        assert eventually(lambda: host.asks)
        assert engine.loads_far()
    assert engine.near_misses == 0


def master(fleet: Fleet) -> AbstractContextManager[None]:
    assert isinstance(fleet.server, MooncakeServers)
    return stopped(fleet.server.master.pid)


def node(fleet: Fleet) -> AbstractContextManager[None]:
    assert isinstance(fleet.server, MooncakeServers)
    return stopped(fleet.server.node.pid)


@pytest.mark.parametrize("fault", [master, node, partitioned])
def test_mooncake_fails_while_an_engine_works(
    mooncake_fleet: Fleet, fault: Callable[[Fleet], AbstractContextManager[None]]
) -> None:
    host = mooncake_fleet.second
    engine = mooncake_fleet.share_chains(fault.__name__)
    assert eventually(lambda: host.asks)
    with engine:
        assert engine.loads_far(3)
        with fault(mooncake_fleet), hurried(host):
            assert engine.goes_on()
        assert eventually(lambda: host.asks), "the breaker closes"
        assert engine.loads_far(), "pages of the fleet are loaded again"
    assert engine.near_misses == 0


def test_mooncake_dies_while_an_engine_works(mooncake_fleet: Fleet) -> None:
    """The last test of the module: its fleet is gone."""
    servers, host = mooncake_fleet.server, mooncake_fleet.second
    assert isinstance(servers, MooncakeServers)
    engine = mooncake_fleet.share_chains("dead")
    with engine:
        assert engine.loads_far(3)
        servers.node.kill()
        assert engine.goes_on()
        servers.master.kill()
        with hurried(host):
            assert eventually(lambda: not host.asks), host.report
            assert engine.goes_on()
        loaded = host.load("near", len(NEAR), SIZE)
        assert loaded.pages == len(NEAR) and np.array_equal(loaded.out, NEAR)
    assert engine.near_misses == 0
