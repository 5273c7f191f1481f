"""What an administrator does wrong, and what the host does: reloads, configurations that are none, a full disk."""

from __future__ import annotations

import time

from service_world import CONFIG, DISK, PAGES, SMALL, World

BAD = SMALL + '[evict]\nhigh = "lots"\n'


def test_a_reload_changes_what_can_change(world: World) -> None:
    world.machine.write(CONFIG, DISK)
    world.start()
    with world.engine() as engine:
        world.with_pages(engine)
        changed = DISK.replace("64MiB", "32MiB").replace("16MiB", "8MiB") + '[log]\nlevel = "debug"\n'
        world.machine.write(CONFIG, changed)
        world.systemctl("reload")
        world.soon(lambda: "reloaded" in world.log(), "not reloaded")
        (line,) = (line for line in world.log().splitlines() if "event=reloaded" in line)
        assert "disk.size = 32MiB" in line
        assert "log.level = debug" in line
        assert "only a restart changes arena.size" in line
        world.soon(lambda: world.stats()["disk"]["cap"] == 32 << 20, "the disk keeps its size")
        assert world.show("ActiveState") == "active"
        assert engine.now().hits == PAGES


def test_a_reload_that_is_wrong_changes_nothing_and_names_the_line(world: World) -> None:
    world.start()
    world.machine.write(CONFIG, BAD)
    told = world.machine.run("systemctl", "reload", "pagetierd")
    assert told.returncode != 0
    assert f"{CONFIG}: line 7: evict.high" in world.log()
    world.machine.do("systemctl", "kill", "--signal=HUP", "--kill-who=main", "pagetierd")
    world.soon(lambda: "not reloaded" in world.show("StatusText"), "nobody is told")
    assert "line 7" in world.show("StatusText")
    assert world.show("ActiveState") == "active"
    assert world.stats()["tiers"]["memory"]["cap"] == 16 << 20


def test_a_configuration_that_does_not_parse(world: World) -> None:
    world.machine.write(CONFIG, "[arena\n")
    assert world.machine.run("systemctl", "start", "pagetierd").returncode != 0
    assert world.show("ExecMainStatus") == "2"
    time.sleep(0.5)
    assert world.show("NRestarts") == "0"
    assert "line 1" in world.log()
    assert world.show("ActiveState") == "failed"


def test_a_file_that_is_broken_meanwhile_costs_nothing_at_a_restart(world: World) -> None:
    world.start()
    with world.engine() as engine:
        world.with_pages(engine)
        stored = engine.now().stored
        world.machine.write(CONFIG, BAD)
        assert world.machine.run("systemctl", "restart", "pagetierd").returncode != 0
        assert engine.now().hits == PAGES  # out of the memory that nobody owns now
        world.machine.write(CONFIG, SMALL)
        world.start()
        engine.until(lambda told: told.attached, "not attached again")
        told = engine.now()
        assert (told.hits, told.stored) == (PAGES, stored)


def test_a_full_disk_costs_the_disk_tier_and_nothing_else(world: World) -> None:
    world.machine.do("mkdir", "-p", "/var/lib/pagetier")
    world.machine.do("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", "/var/lib/pagetier")
    world.machine.do("chown", "pagetier:pagetier", "/var/lib/pagetier")
    world.machine.write(CONFIG, DISK.replace("[disk]", '[disk]\nwrite = "through"'))
    world.start()
    with world.engine() as engine:
        world.with_pages(engine)
        world.soon(lambda: "/var/lib/pagetier/" in world.log() and "is full" in world.log(), "nobody says so")
        began = time.monotonic()
        world.systemctl("restart")
        assert engine.now().hits == PAGES
        world.systemctl("stop")
        assert time.monotonic() - began < 20
        assert world.show("Result") == "success"
        assert world.segments() == []
