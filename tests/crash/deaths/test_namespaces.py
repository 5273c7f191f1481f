"""Daemons that are restarted where they cannot see their engines free the slots of the dead, and of no living one.

Each scene starts a daemon, an engine that holds a match and a reservation that is half written, and kills the daemon.
The next daemon runs in other namespaces. Another engine fills all memory that is free, and the first one writes late.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import F_OFD_SETLK, F_WRLCK, fcntl
from pathlib import Path

import pytest

from engine_in_namespaces import EngineProcess
from eventually import eventually
from other_users import ALICE
from pagetier.daemon.index.slots import MOST_SLOTS
from placed_daemon import OWN_PIDS, PLACES, PlacedDaemon, placed
from process_states import children_of, state_of
from refused_starts import pagetierd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these namespaces")

FILLED = 300  # pages: more than the arena has


@contextmanager
def engine(daemon: PlacedDaemon, *what: str, user: int = 0, before: list[str] | None = None) -> Iterator[EngineProcess]:
    process = EngineProcess(daemon.socket, *what, user=user, before=before or ())
    try:
        yield process
    finally:
        process.outer.send_signal(signal.SIGCONT)
        process.kill()


@contextmanager
def holding(daemon: PlacedDaemon) -> Iterator[EngineProcess]:
    """Yields an engine with a match that it holds."""
    with engine(daemon) as held:
        held.do("hold", 0)
        yield held


def check_nothing_is_other(daemon: PlacedDaemon, held: EngineProcess) -> None:
    """Asserts that no byte changes, whatever other engines store and the holding one writes late."""
    with engine(daemon, before=daemon.enter()) as other:
        assert other.do("fill", 10_000, FILLED) == "0"
        assert held.do("wrong") == "0", "other bytes in a held match"
        held.do("write_late")
        assert other.do("lost", 10_000, FILLED) == "0", "a late write changed pages of others"
        assert held.do("wrong") == "0"


def check_slot_is_freed(daemon: PlacedDaemon, held: EngineProcess) -> None:
    """Kills the engine, and asserts that no slot is taken then."""
    held.kill()
    assert eventually(lambda: not daemon.taken()), daemon.log.read_text()


@pytest.mark.parametrize("place", PLACES)
def test_a_restart_out_of_sight(place: str) -> None:
    with placed() as daemon, holding(daemon) as held:
        daemon.move(*PLACES[place])
        check_nothing_is_other(daemon, held)
        check_slot_is_freed(daemon, held)


@pytest.mark.parametrize("place", ["hidepid-1", "hidepid-2", "hidepid-4", "subset"])
def test_an_engine_that_proc_does_not_show(place: str) -> None:
    """It attaches, keeps its pages over a restart, and its death is seen."""
    with placed(*PLACES[place]) as daemon, engine(daemon, user=ALICE) as held:
        held.do("hold", 0)
        daemon.move(*PLACES[place])
        check_nothing_is_other(daemon, held)
        held.do("attach_again")
        check_slot_is_freed(daemon, held)


def test_an_engine_and_a_daemon_in_namespaces_beside_each_other() -> None:
    with placed(*OWN_PIDS) as daemon, engine(daemon, *OWN_PIDS) as held, engine(daemon, "user", *OWN_PIDS) as other:
        held.do("hold", 0)
        other.do("hold", 100)
        assert len({one.kernel_id for one in daemon.observer().attachments_with_pins()}) == 2
        daemon.move(*OWN_PIDS)
        check_nothing_is_other(daemon, held)
        assert other.do("wrong") == "0"
        daemon.move()
        check_nothing_is_other(daemon, other)
        held.kill()
        assert eventually(lambda: len(daemon.taken()) == 1)
        other.do("attach_again")
        other.kill()
        assert eventually(lambda: not daemon.taken())


def test_a_hand_over_and_a_release_of_the_memory() -> None:
    """Released memory stays mapped by the engine, and the next daemon has memory of its own."""
    with placed(*OWN_PIDS) as daemon, holding(daemon) as held:
        daemon.signal(signal.SIGUSR1)
        assert daemon.wait() == 0
        daemon.follow(*PLACES["time"])
        check_nothing_is_other(daemon, held)
        daemon.signal(signal.SIGUSR1)
        assert daemon.wait() == 0
        assert pagetierd("--name", daemon.name, "--release-memory").code == 0
        assert not daemon.leftovers()
        daemon.follow(*OWN_PIDS)
        check_nothing_is_other(daemon, held)
        assert eventually(lambda: not daemon.taken())


def test_an_engine_that_closed_all_its_descriptors() -> None:
    with placed() as daemon, holding(daemon) as held:
        held.do("close_all")
        daemon.move(*OWN_PIDS)
        check_nothing_is_other(daemon, held)
        check_slot_is_freed(daemon, held)


def test_an_engine_that_is_stopped() -> None:
    with placed() as daemon, holding(daemon) as held:
        held.outer.send_signal(signal.SIGSTOP)
        daemon.move(*OWN_PIDS)
        with engine(daemon, before=daemon.enter()) as other:
            assert other.do("fill", 10_000, FILLED) == "0"
        held.outer.send_signal(signal.SIGCONT)
        check_nothing_is_other(daemon, held)


def test_threads_that_outlive_their_leader_keep_the_slot() -> None:
    """The process is a zombie in /proc, and its other threads still copy."""
    with placed() as daemon, holding(daemon) as held:
        held.do("end_leader")
        assert eventually(lambda: state_of(held.pid) == "Z")
        daemon.move()
        check_nothing_is_other(daemon, held)
        daemon.move(*OWN_PIDS)
        check_nothing_is_other(daemon, held)
        check_slot_is_freed(daemon, held)


def test_a_zombie_is_dead() -> None:
    """Its parent does not wait for it. It died while there was no daemon."""
    with placed() as daemon, holding(daemon) as held:
        daemon.kill()
        held.outer.kill()
        daemon.follow(*OWN_PIDS)
        assert eventually(lambda: not daemon.taken())
        assert held.outer.poll() is not None


def test_an_engine_that_executes_another_program_maps_nothing() -> None:
    with placed() as daemon, holding(daemon) as held:
        held.do("exec", "sleep", 600)
        assert eventually(lambda: "sleep" in Path(f"/proc/{held.pid}/comm").read_text())
        daemon.move(*OWN_PIDS)
        assert eventually(lambda: not daemon.taken())


def test_an_engine_that_executes_itself_again_and_again_gets_its_slots_back() -> None:
    """The process lives, and no death is reported. Its earlier programs map nothing."""
    with placed() as daemon, engine(daemon) as held, engine(daemon) as other:
        other.do("hold", 0)
        for lap in range(MOST_SLOTS + 6):
            held.do("hold", 1000 + 100 * lap)
            assert held.exec_itself() == held.pid, lap
        assert eventually(lambda: len(daemon.taken()) == 2), daemon.log.read_text()
        assert daemon.lines("event=slot_unmapped") and not daemon.lines("event=process_died")
        check_nothing_is_other(daemon, other)
        held.do("hold", 100)
        assert other.do("wrong") == "0"


def test_a_child_of_a_dead_engine_keeps_no_slot() -> None:
    with placed() as daemon, holding(daemon) as held:
        child = int(held.do("fork"))
        try:
            daemon.kill()
            held.kill()
            daemon.follow(*OWN_PIDS)
            assert eventually(lambda: not daemon.taken())
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_shares_the_memory_keeps_the_slot(tmp_path: Path) -> None:
    """The engine is in vfork(), and dies: its child can still write."""
    with placed() as daemon, holding(daemon) as held:
        held.do("vfork", tmp_path)
        assert eventually(lambda: bool(children_of(held.pid)))
        (child,) = children_of(held.pid)
        try:
            daemon.move(*OWN_PIDS)
            check_nothing_is_other(daemon, held)
            held.kill()
            with engine(daemon, before=daemon.enter()) as other:
                assert other.do("fill", 20_000, FILLED) == "0"
            assert eventually(lambda: len(daemon.taken()) == 1)
        finally:
            os.kill(child, signal.SIGKILL)
        assert eventually(lambda: not daemon.taken())


def test_a_slot_that_nothing_judges_is_kept_shown_and_reclaimed_by_request() -> None:
    """Another process has locked what the daemon locks for its slots. It keeps them, and frees none."""
    with placed() as daemon, (Path("/dev/shm") / f"{daemon.name}.arena").open("r+b") as arena:
        fcntl(arena, F_OFD_SETLK, struct.pack("hhqqi4x", F_WRLCK, os.SEEK_SET, 0, 0, 0))
        with holding(daemon) as held:
            (slot,) = daemon.taken()
            assert daemon.lines("event=slot_unlocked")
            daemon.move(*OWN_PIDS)
            check_nothing_is_other(daemon, held)
            held.kill()
            assert eventually(lambda: daemon.snapshot().daemon.unjudged == 1)
            assert f"pagetier reclaim {slot}" in daemon.pagetier("doctor").output
            (client,) = [one for one in daemon.snapshot().clients if one.unjudged]
            assert client.slot == slot
            assert "use --yes" in daemon.pagetier("reclaim", str(slot)).output
            assert "writes into pages of other engines" in daemon.pagetier("reclaim", str(slot), "--yes").output
            assert eventually(lambda: not daemon.taken())
            assert eventually(lambda: daemon.snapshot().daemon.unjudged == 0)


def test_a_stopped_engine_is_not_reclaimed() -> None:
    """It maps the arena. If its slot were freed, it would keep that mapping when it attached again, without a lock."""
    with placed() as daemon, holding(daemon) as held:
        held.outer.send_signal(signal.SIGSTOP)
        daemon.move(*OWN_PIDS)
        (slot,) = daemon.taken()
        refused = daemon.pagetier("reclaim", str(slot), "--yes")
        assert refused.exit_code == 1 and "still maps the arena" in refused.output
        held.outer.send_signal(signal.SIGCONT)
        held.do("attach_again")
        daemon.move(*OWN_PIDS)
        with engine(daemon, before=daemon.enter()) as other:
            assert other.do("fill", 10_000, FILLED) == "0"
        assert held.do("wrong") == "0"


def test_an_engine_that_lives_on_after_its_slot_was_reclaimed() -> None:
    """It attaches again and keeps its mapping, which has no lock. So the next daemon does not judge it by one."""
    with placed() as daemon:
        with (Path("/dev/shm") / f"{daemon.name}.arena").open("r+b") as arena:
            fcntl(arena, F_OFD_SETLK, struct.pack("hhqqi4x", F_WRLCK, os.SEEK_SET, 0, 0, 0))
            held = EngineProcess(daemon.socket)
        try:
            daemon.move(*OWN_PIDS)
            (slot,) = daemon.taken()
            assert daemon.pagetier("reclaim", str(slot), "--yes").exit_code == 0
            assert eventually(lambda: not daemon.taken())
            held.do("attach_again")
            held.do("hold", 0)
            daemon.move(*OWN_PIDS)
            check_nothing_is_other(daemon, held)
            assert eventually(lambda: daemon.snapshot().daemon.unjudged == 1)
        finally:
            held.kill()


def test_a_slot_that_is_watched_is_not_reclaimed() -> None:
    with placed() as daemon, holding(daemon) as held:
        (slot,) = daemon.taken()
        for _ in range(2):
            refused = daemon.pagetier("reclaim", str(slot), "--yes")
            assert refused.exit_code == 1 and "the daemon watches its process" in refused.output
            daemon.move()
        assert held.do("wrong") == "0"


def test_an_engine_of_another_pid_namespace_is_named_by_slot_and_user() -> None:
    """Its recorded PID is that of no process, or of another one, where the next daemon runs."""
    with placed() as daemon, engine(daemon) as held:
        assert [one.pid for one in daemon.snapshot().clients] == [held.pid]
        daemon.move(*OWN_PIDS)
        assert eventually(lambda: [one.pid for one in daemon.snapshot().clients] == [0])
        held.do("attach_again")
        assert eventually(lambda: [one.pid for one in daemon.snapshot().clients] == [0])
        (slot,) = daemon.taken()
        daemon.move()
        assert eventually(lambda: [one.pid for one in daemon.snapshot().clients] == [held.pid])
        daemon.move(*OWN_PIDS)
        check_slot_is_freed(daemon, held)
        assert eventually(lambda: bool(daemon.lines("event=process_died")))
        assert f"the process in slot {slot} (" in daemon.lines("event=process_died")[-1]
        assert "of user 0) has ended, stopped or killed" in daemon.lines("event=process_died")[-1]


def test_a_pid_that_another_process_has() -> None:
    """Where the next daemon runs, the engine's PID is that of the daemon itself, then of a process that has ended."""
    with placed() as daemon, holding(daemon) as held:
        daemon.move(*OWN_PIDS, f"last-pid={held.pid - 1}")
        assert Path(f"/proc/{daemon.inner}/status").read_text().split("NSpid:")[1].split()[1] == str(held.pid)
        check_nothing_is_other(daemon, held)
        daemon.move(*OWN_PIDS, f"last-pid={held.pid + 1}")
        check_nothing_is_other(daemon, held)
        check_slot_is_freed(daemon, held)
