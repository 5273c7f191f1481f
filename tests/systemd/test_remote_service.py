"""The fleet's worker as a service of its own, under a real systemd: it has the network, and the daemon has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service_world import CONFIG, SMALL, WHERE_TESTS_ARE, ServiceWorld

REMOTE = "pagetierd-remote"
FLEET = '[remote]\nurl = "file:///srv/pages"\nworker = "service"\n'
LOG = "/var/log/remote.log"


@pytest.fixture
def remote(world: ServiceWorld) -> Iterator[ServiceWorld]:
    """Returns the service with a fleet in a folder, and the service of its worker."""
    do = world.machine.do
    assert f"enable --now pagetierd {REMOTE}" in do("pagetier", "unit", "install", "--remote=localhost")
    world.drop_in(WHERE_TESTS_ARE.format(log=LOG), unit=REMOTE, name="test")
    world.drop_in("[Service]\nReadWritePaths=/srv/pages\n", unit=REMOTE)
    do("install", "-d", "-o", "pagetier", "-g", "pagetier", "/srv/pages")
    world.machine.write(CONFIG, SMALL + FLEET)
    do("systemctl", "enable", REMOTE)
    yield world
    do("systemctl", "disable", "--now", REMOTE)
    do("rm", "-rf", "/srv/pages")


def standing(world: ServiceWorld) -> str:
    return str(world.stats()["fleet"]["standing"])


def is_open(world: ServiceWorld) -> None:
    world.soon(lambda: standing(world) == "open", f"the fleet is not open: {world.machine.read(LOG)}")


def test_the_worker_has_the_network_and_the_daemon_has_none(remote: ServiceWorld) -> None:
    remote.start()
    is_open(remote)
    assert (remote.show("PrivateNetwork"), remote.show("PrivateNetwork", REMOTE)) == ("yes", "no")
    assert remote.show("RestrictAddressFamilies") == "AF_UNIX"
    assert set(remote.show("RestrictAddressFamilies", REMOTE).split()) == {
        "AF_UNIX",
        "AF_INET",
        "AF_INET6",
        "AF_NETLINK",
    }
    assert set(remote.show("IPAddressAllow", REMOTE).split()) == {"127.0.0.0/8", "::1/128"}
    with remote.full_engine():
        remote.soon(lambda: int(remote.stats()["fleet"]["written"]) > 0, "nothing is written to the fleet")
    report = remote.machine.do("stat", "--format=%U %a", "/run/pagetier/remote.sock")
    assert report == "pagetier 600\n"


def test_a_worker_that_dies_comes_again_and_engines_do_not_notice(remote: ServiceWorld) -> None:
    remote.start()
    is_open(remote)
    with remote.full_engine() as engine:
        before = remote.show("MainPID", REMOTE)
        remote.machine.do("systemctl", "kill", "--signal=KILL", REMOTE)
        remote.soon(lambda: remote.show("MainPID", REMOTE) not in (before, "0"), "the worker was not restarted")
        is_open(remote)
        assert engine.now().wrong == 0


def test_it_stops_and_restarts_with_the_daemon(remote: ServiceWorld) -> None:
    remote.start()
    is_open(remote)
    remote.systemctl("restart")
    is_open(remote)
    remote.machine.do("systemctl", "stop", REMOTE)
    remote.soon(lambda: standing(remote) == "down", "the daemon does not notice")
    with remote.full_engine():
        pass
    remote.machine.do("systemctl", "start", REMOTE)
    is_open(remote)
    remote.systemctl("stop")
    remote.soon(lambda: remote.show("ActiveState", REMOTE) == "inactive", "it runs without the daemon")
