"""Mistakes of administrators and problems of the host: reloads, invalid configurations, a full disk."""

from __future__ import annotations

from service_world import CONFIG, DISK, PAGES, SMALL, ServiceWorld

BAD = SMALL + '[evict]\nfree = "lots"\n'


def test_a_reload_applies_the_settings_that_can_change(world: ServiceWorld) -> None:
    world.machine.write(CONFIG, DISK)
    world.start()
    with world.full_engine() as engine:
        changed = DISK.replace("64MiB", "32MiB").replace("16MiB", "8MiB") + '[log]\nlevel = "debug"\n'
        world.machine.write(CONFIG, changed)
        world.systemctl("reload")
        world.soon(lambda: "reloaded" in world.log(), "the configuration was not reloaded")
        (line,) = (line for line in world.log().splitlines() if "event=reloaded" in line)
        assert "disk.size = 32MiB" in line
        assert "log.level = debug" in line
        assert "only a stop and a start change arena.size" in line
        world.soon(lambda: world.stats()["disk"]["cap"] == 32 << 20, "the size of the disk did not change")
        assert world.show("ActiveState") == "active"
        assert engine.now().hits == PAGES


def test_a_reload_of_an_invalid_file_changes_nothing_and_names_the_key(world: ServiceWorld) -> None:
    world.start()
    world.machine.write(CONFIG, BAD)
    report = world.machine.run("systemctl", "reload", "pagetierd")
    assert report.returncode != 0
    assert f"{CONFIG}: evict.free" in world.log()
    world.signal("HUP")
    world.soon(lambda: "not reloaded" in world.show("StatusText"), "the status does not report the failed reload")
    assert "evict.free" in world.show("StatusText")
    assert world.show("ActiveState") == "active"
    assert world.stats()["tiers"]["memory"]["cap"] == 16 << 20


def test_a_configuration_that_does_not_parse_is_rejected_with_its_line(world: ServiceWorld) -> None:
    world.machine.write(CONFIG, "[arena\n")
    assert world.machine.run("systemctl", "start", "pagetierd").returncode != 0
    assert world.show("ExecMainStatus") == "2"
    world.soon(lambda: world.show("ActiveState") == "failed", "systemd tries to start it again")
    assert world.show("NRestarts") == "0"
    assert "line 1" in world.log()


def test_a_restart_with_an_invalid_file_loses_no_page(world: ServiceWorld) -> None:
    world.start()
    with world.full_engine() as engine:
        stored = engine.now().stored
        world.machine.write(CONFIG, BAD)
        assert world.machine.run("systemctl", "restart", "pagetierd").returncode != 0
        assert engine.now().hits == PAGES  # from memory, without a daemon
        world.machine.write(CONFIG, SMALL)
        world.start()
        report = engine.attached()
        assert (report.hits, report.stored) == (PAGES, stored)


def test_a_full_disk_affects_only_the_disk_tier(world: ServiceWorld) -> None:
    world.machine.do("mkdir", "-p", "/var/lib/pagetier")
    world.machine.do("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", "/var/lib/pagetier")
    world.machine.do("chown", "pagetier:pagetier", "/var/lib/pagetier")
    world.machine.write(CONFIG, DISK.replace("[disk]", '[disk]\nwrite = "through"'))
    world.start()
    with world.full_engine() as engine:
        world.soon(lambda: "/var/lib/pagetier/" in world.log() and "is full" in world.log(), "it is not logged")
        world.systemctl("restart")
        assert engine.now().hits == PAGES
        world.systemctl("stop")
        assert world.show("Result") == "success", "systemd has killed no daemon"
        assert world.log().count("event=stopped") == 2
        assert world.segments() == []
