"""Starts, stops, restarts and crashes of the service under a real systemd, with a working engine."""

from __future__ import annotations

import pytest

from service_world import CONFIG, DISK, LOG, PAGES, SMALL, SOCKET, WHERE_TESTS_ARE, ServiceWorld
from systemd_machine import PYTHON

PATIENT = """[Service]
WatchdogSec=1h
Environment=WATCHDOG_USEC=3000000
TimeoutAbortSec=1s
"""
"""The daemon pings once a second, and systemd has the patience for a busy machine."""
IMPATIENT = """
import socket, struct, sys
sender = struct.pack("3i", int(sys.argv[1]), 0, 0)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
    notify.connect("/run/systemd/notify")
    notify.sendmsg([b"WATCHDOG_USEC=1000000"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, sender)])
"""
"""Asks systemd in the name of a daemon, which only root can, to wait for its next ping for no more than a second."""


def test_the_service_serves_when_systemd_reports_it_active(world: ServiceWorld) -> None:
    world.machine.write(CONFIG, SMALL.replace("16MiB", "256MiB"))
    world.start()
    assert world.show("ActiveState") == "active"
    assert world.show("StatusText") == f"serving 0 pages in 0 B of 256.0 MiB on {SOCKET}"
    stats = world.stats()
    assert stats["tiers"]["memory"]["cap"] == 256 << 20
    used = int(world.machine.do("sh", "-c", "df --output=used -B1 /dev/shm | tail -1"))
    assert used >= 256 << 20
    report = world.machine.do("stat", "--format=%U %G %a", SOCKET, "/run/pagetier", "/dev/shm/pagetier.arena")
    assert report.splitlines() == ["pagetier pagetier 660", "pagetier pagetier 755", "pagetier pagetier 600"]
    for unit in ("pagetierd", "pagetierd-memory", "pagetierd-release-memory"):
        assert world.show("RestrictAddressFamilies", unit) == "AF_UNIX"
    assert world.stats(user="alice") is not None
    denied = world.machine.run("pagetier", "stats", user="bob")
    assert denied.returncode == 3
    assert "Permission denied" in denied.stderr


def test_a_restart_keeps_the_pages_and_the_engine(world: ServiceWorld) -> None:
    world.start()
    with world.full_engine() as engine:
        before, stored = world.stats()["daemon"], engine.now().stored
        world.systemctl("restart")
        assert engine.now().hits == PAGES
        after = world.stats()["daemon"]
        assert after["segments"] == before["segments"]
        assert after["incarnation"] == before["incarnation"] + 1
        assert engine.attached().stored == stored
    assert "the pages stay in memory for the next daemon" in world.log()


def test_restarts_during_stores_and_evictions_lose_no_page(world: ServiceWorld) -> None:
    world.machine.write(
        CONFIG, SMALL + '[evict]\npolicy = "lru"\n'
    )  # leaves out no page, and so evicts with each store
    world.start()
    with world.engine(PAGES, prompts=50) as engine:  # eight times the capacity of the arena
        stored = engine.until(lambda report: report.stored > 400, "the engine does not store").stored
        for _ in range(2):
            world.systemctl("restart")
            stored = engine.until(lambda report: report.stored > stored + 400, "the engine no longer stores").stored  # noqa: B023
        assert world.stats()["daemon"]["incarnation"] == 3
        assert world.stats()["tiers"]["memory"]["evictions"] > 400
    report = world.machine.run("pagetier", "doctor", "--config", CONFIG).stdout
    assert "all pages, frames and lists are consistent" in report


def test_a_crash_keeps_the_pages_and_the_engine(world: ServiceWorld) -> None:
    world.start()
    with world.full_engine() as engine:
        stored = engine.now().stored
        world.signal("KILL")
        world.is_restarted()
        report = engine.attached()
        assert (report.hits, report.stored) == (PAGES, stored)
    world.memory_is_kept()


def notified(world: ServiceWorld) -> float:
    """Returns when the daemon has notified the watchdog last, in seconds of systemd's clock."""
    return int(world.show("WatchdogTimestampMonotonic")) / 1e6


def test_a_daemon_that_hangs_is_replaced(world: ServiceWorld) -> None:
    world.drop_in(PATIENT)
    world.start()
    with world.full_engine() as engine:
        began = notified(world)
        world.soon(lambda: notified(world) > began, "the watchdog is not notified")
        world.signal("STOP")
        stored = engine.now().stored
        assert world.show("NRestarts") == "0"
        world.machine.do(PYTHON, "-c", IMPATIENT, world.show("MainPID"))
        world.is_restarted()
        report = engine.attached()
        assert (report.hits, report.stored) == (PAGES, stored)


def test_a_stop_writes_to_disk_informs_engines_and_releases_memory(world: ServiceWorld) -> None:
    world.machine.write(CONFIG, DISK)
    world.start()
    with world.full_engine() as engine:
        world.soon(lambda: world.stats()["disk"]["standing"] == "open", "the disk tier is not open")
        world.systemctl("stop")
        assert world.segments() == []
        engine.until(lambda report: not report.mapped, "the engine keeps the memory mapped")
        assert world.show("Result") == "success"
        assert world.show("ActiveState", "pagetierd-memory") == "inactive"
        assert "the memory is released" in world.log()
    world.start()
    world.soon(lambda: world.stats()["tiers"]["disk"]["pages"] == PAGES, "the pages are not on disk")


def test_a_stop_of_a_hanging_daemon_releases_its_memory(world: ServiceWorld) -> None:
    # The daemon ignores this signal. The timeout also limits the command that releases the memory.
    world.drop_in("[Service]\nTimeoutStopSec=5s\nKillSignal=SIGWINCH\n")
    world.start()
    with world.full_engine() as engine:
        world.machine.do("systemctl", "stop", "pagetierd")
        assert world.segments() == []
        assert "event=stopped" not in world.log()
        engine.until(lambda report: not report.mapped, "the engine keeps the memory mapped")


@pytest.mark.parametrize(("signal", "state"), [("KILL", "failed"), ("TERM", "inactive")])
def test_memory_of_an_ended_daemon_is_kept_until_the_service_stops(
    world: ServiceWorld, signal: str, state: str
) -> None:
    world.drop_in("[Service]\nRestart=no\n")
    world.start()
    world.signal(signal)
    world.soon(lambda: world.show("ActiveState") == state, "the daemon did not end")
    assert len(world.segments()) == 3
    world.machine.write(CONFIG, "[arena]\nsiez = 1\n")  # an invalid configuration
    world.systemctl("stop")
    assert world.segments() == []


def test_another_arena_size_needs_only_a_stop_and_a_start(world: ServiceWorld) -> None:
    world.start()
    with world.full_engine():
        world.machine.write(CONFIG, SMALL.replace("16MiB", "32MiB"))
        assert world.machine.run("systemctl", "restart", "pagetierd").returncode != 0
        assert (world.show("ActiveState"), world.show("ExecMainStatus")) == ("failed", "5")
        assert "`systemctl stop` and then `systemctl start`" in world.log()
        assert len(world.segments()) == 3
    world.memory_is_kept()
    world.systemctl("stop")
    assert world.segments() == []
    world.start()
    assert world.stats()["tiers"]["memory"]["cap"] == 32 << 20


def test_another_arena_size_needs_no_stop_without_pages(world: ServiceWorld) -> None:
    world.start()
    world.machine.write(CONFIG, SMALL.replace("16MiB", "32MiB"))
    world.systemctl("restart")
    assert "event=leftovers_dropped" in world.log()
    assert world.stats()["tiers"]["memory"]["cap"] == 32 << 20


def test_a_tenant_has_a_daemon_a_user_and_memory_of_its_own(world: ServiceWorld) -> None:
    do, unit = world.machine.do, "pagetierd@acme"
    do("pagetier", "unit", "install", "--tenant", "acme")
    do("systemd-sysusers", "/etc/sysusers.d/pagetier-acme.conf")
    world.machine.write("/etc/pagetier/acme.toml", SMALL.replace('"pagetier"', '"pagetier-acme"'))
    world.drop_in(WHERE_TESTS_ARE.format(log=LOG), unit="pagetierd@")
    world.start()
    do("systemctl", "start", unit)
    socket = "/run/pagetier-acme/pagetier.sock"
    report = do("stat", "--format=%U %G %a", socket, "/dev/shm/pagetier-acme.arena")
    assert report.splitlines() == ["pagetier-acme pagetier-acme 660", "pagetier-acme pagetier-acme 600"]
    refused = world.machine.run("pagetier", "stats", "--socket", socket, user="alice")
    assert refused.returncode == 3, "alice may only attach to the other daemon"
    world.memory_is_kept("@acme")
    for kind in ("pagetierd", "pagetierd-memory", "pagetierd-release-memory"):
        assert world.show("RestrictAddressFamilies", f"{kind}@acme") == "AF_UNIX"
    do("systemctl", "restart", unit)
    world.memory_is_kept("@acme")
    assert len(world.segments()) == 6
    do("systemctl", "stop", unit)
    assert sorted(world.segments()) == ["pagetier.arena", "pagetier.index", "pagetier.locks"]
