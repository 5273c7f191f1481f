"""Two hosts and a real S3 server, each in a network of its own: the answers stay the same, also if a cable is cut."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from eventually import eventually
from fleet_hosts import PROMPTS, Hosts
from network_hosts import STORE, Network, network, stopped
from one_host import Scene, ask, exact, hybrid
from store_servers import ACCESS_KEY, SECRET_KEY, STORES, S3Server

_CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@contextmanager
def worker_of(scene: Scene, before: Sequence[str]) -> Iterator[None]:
    """Runs the fleet's worker in the network of a host and in the environment that has the library of the store."""
    worker = f'"{STORES}/python" -m pagetier.tiers.worker --connect "{scene.daemon.socket.with_name("remote.sock")}"'
    loop = [*before, "sh", "-c", f"while {worker}; do sleep 0.1; done"]
    environment = {**os.environ, **_CREDENTIALS}
    with subprocess.Popen(loop, start_new_session=True, stdin=subprocess.DEVNULL, env=environment) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class Connected:
    """The hosts, their networks, and the server."""

    def __init__(self, hosts: Hosts, net: Network, server: S3Server) -> None:
        self.hosts, self.net, self.server = hosts, net, server


@pytest.fixture(scope="module", params=hybrid())
def connected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    if not (STORES / "weed").exists():
        pytest.skip("make test-fleet has not made the environment of the stores")
    with network() as net, ExitStack() as stack:
        server = S3Server(tmp_path_factory.mktemp("s3"), STORE, net.store.enter)
        stack.callback(server.process.kill)
        hosts = Hosts(request.param, stack, ["--set", f"remote.url={server.url}", "--set", "remote.worker=service"])
        for scene in (hosts.first, hosts.second):
            stack.enter_context(worker_of(scene, net.add_host().enter))
        hosts.compute()
        yield Connected(hosts, net, server)


def test_a_prompt_of_one_host_is_answered_on_the_other_bit_by_bit(connected: Connected) -> None:
    hosts = connected.hosts
    result = ask(hosts.engine, *PROMPTS)
    assert exact(result) == exact(hosts.own)
    assert result["external"] == hosts.remote_tokens == 2 * hosts.second.hit()


@pytest.mark.parametrize("trouble", ["partitioned", "stopped"])
def test_a_store_that_is_not_reached_delays_no_request_for_ever(connected: Connected, trouble: str) -> None:
    hosts = connected.hosts
    cut = connected.net.partitioned(1) if trouble == "partitioned" else stopped(connected.server.process.pid)
    with cut:
        for _ in range(2):
            result = hosts.ask_when_empty(*PROMPTS)
            assert result["external"] == 0 and hosts.is_right(result)
        assert eventually(lambda: not hosts.asks)
        assert hosts.asks_nothing()
    assert eventually(lambda: hosts.asks), "the breaker stays open"
    result = hosts.ask_when_empty(*PROMPTS)
    assert exact(result) == exact(hosts.own) and result["external"] == 2 * hosts.second.hit()
