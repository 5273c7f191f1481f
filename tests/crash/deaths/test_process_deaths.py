"""Tests processes that are hard to identify: equal pids in separate namespaces, other programs after exec, sleepers.

Forks, and processes that exit without detaching, are tested in tests/client/test_client_lifecycle.py.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from child_process import attached
from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, assert_exact, found, page_of, prompt, store
from pagetier.client import Client, Keys
from pagetier.client.adapters import reserve_async
from process_states import children_of
from running_daemon import RunningDaemon

FRAMES = 64


def fill(client: Client, first: int, prompts: int = FRAMES // 8) -> int:
    """Stores prompt after prompt, and returns the number of pages stored."""
    return sum(store(client, prompt(number)).stored for number in range(first, first + prompts))


def stores(client: Client, keys: Keys) -> bool:
    """Stores pages, and returns whether all are found then."""
    store(client, keys)
    return found(client, keys) == len(keys)


# --- equal process and thread ids ------------------------------------------------------------------------------------

OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
can_unshare = pytest.mark.skipif(
    subprocess.run([*OWN_PIDS, "true"], capture_output=True, check=False).returncode != 0,
    reason="PID namespaces cannot be created here",
)
HOLDER = """
import os, sys, threading
sys.path[:0] = sys.argv[2:]
from eventually import PATIENCE_S
from keyed_pages import PAGE, page_of, prompt, store
from pagetier.client import Client
client = Client(sys.argv[1], timeout=PATIENCE_S)
assert client.wait_attached(PATIENCE_S)
mine = int(sys.stdin.readline())
assert store(client, prompt(mine)).stored == 8
match = client.match(prompt(mine))
reservation = client.reserve(prompt(1000 + mine), PAGE)
print(os.getpid(), threading.get_native_id(), len(match), len(reservation.granted), flush=True)
sys.stdin.readline()
for page, key in enumerate(prompt(1000 + mine)):
    reservation.write(page, page_of(key))
print(reservation.publish().stored, flush=True)
sys.stdin.readline()
"""


def namespaced(socket: Path) -> subprocess.Popen[str]:
    """Starts an engine that is process 1 of its own PID namespace."""
    command = [*OWN_PIDS, sys.executable, "-c", HOLDER, str(socket), *sys.path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@can_unshare
def test_processes_with_equal_process_and_thread_ids_are_distinguished(daemon: RunningDaemon) -> None:
    """A mutex that identifies its owner by such an ID declares the living owner dead when its namesake dies."""
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        engines = [stack.enter_context(namespaced(daemon.socket)) for _ in range(3)]
        assert [said(engine, str(number)) for number, engine in enumerate(engines)] == ["1 1 8 8"] * 3
        slots = [slot for slot in daemon.slots() if slot.pins == 8]
        assert len({slot.pid for slot in slots}) == 3, "the daemon distinguishes the engines"
        os.kill(children_of(engines[1].pid)[0], signal.SIGKILL)
        engines[1].wait(PATIENCE_S)
        assert eventually(lambda: sum(slot.pins for slot in daemon.slots()) == 16)
        assert eventually(lambda: store(other, prompt(1001)).stored == 8), (
            "the reservation of the dead engine is released"
        )
        fill(other, 2000)
        assert found(other, prompt(1)) == 0, "the pages pinned by the dead engine can be evicted"
        for number in (0, 2):
            assert found(other, prompt(number)) == 8, "the pins of the living engine stay"
            assert said(engines[number], "") == "8"
            assert found(other, prompt(1000 + number)) == 8
        for number in (0, 2):
            engines[number].communicate("\n", timeout=PATIENCE_S)


# --- exec ------------------------------------------------------------------------------------------------------------


def _exec(client: Client, pipe: Connection) -> None:
    """Executes another program, which knows nothing of the cache, while pages are pinned and others reserved."""
    held = client.match(prompt(0)), client.reserve(prompt(1), PAGE)
    pipe.send(len(held[0]))
    os.execvp("sleep", ["sleep", "3600"])


def end_a_writer(daemon: RunningDaemon) -> None:
    """Kills another process, and waits until the frames that it had reserved have been in quarantine."""
    frames = daemon.header().used_frames

    def reserve(client: Client, pipe: Connection) -> None:
        reservation = client.reserve(prompt(2), PAGE)
        pipe.send(len(reservation.granted))
        pipe.recv()

    with attached(daemon.socket, reserve) as writer:
        assert writer.reported() == 8
    assert eventually(lambda: daemon.header().used_frames == frames), daemon.header()


def opened_by(pid: int) -> Iterator[str]:
    """Yields what the descriptors of a process refer to. A program that begins opens and closes some."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(link.readlink())


def test_a_process_keeps_its_pins_after_exec_until_it_ends(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        assert store(client, prompt(0)).stored == 8
        with attached(daemon.socket, _exec) as child:
            assert child.reported() == 8
            assert eventually(lambda: b"sleep" in Path(f"/proc/{child.pid}/cmdline").read_bytes())
            assert not [to for to in opened_by(child.pid) if daemon.name in to], "the new program inherits no segment"
            assert daemon.name not in Path(f"/proc/{child.pid}/maps").read_text()
            end_a_writer(daemon)
            assert {slot.pid: slot.pins for slot in daemon.slots()}[child.pid] == 8, (
                "its GPU may still access the pages"
            )
            assert store(client, prompt(1)).pending == 8
            child.kill()
        assert eventually(lambda: store(client, prompt(1)).stored == 8)
        assert not any(slot.pins for slot in daemon.slots())


def test_deaths_of_processes_of_an_earlier_daemon_are_noticed(daemon: RunningDaemon) -> None:
    """One is stopped, one runs another program: neither attaches to the next daemon, which finds them in the index."""
    with daemon.client() as client, ExitStack() as stack:
        assert store(client, prompt(0)).stored == 8
        sleeper = stack.enter_context(attached(daemon.socket, _sleep_over))
        assert sleeper.reported() == 8
        sleeper.signal(signal.SIGSTOP)
        other = stack.enter_context(attached(daemon.socket, _exec))
        assert other.reported() == 8
        daemon.kill()
        daemon.start()
        assert {slot.pid for slot in daemon.slots() if slot.pins} == {sleeper.pid, other.pid}
        for child in (other, sleeper):
            child.kill()
            assert eventually(lambda pid=child.pid: pid not in {slot.pid for slot in daemon.slots()})  # type: ignore[misc]
        assert not any(slot.pins for slot in daemon.slots())
        assert client.wait_attached(PATIENCE_S) and eventually(lambda: store(client, prompt(1)).stored == 8)


# --- ends of all kinds -----------------------------------------------------------------------------------------------


def _raise() -> None:
    raise RuntimeError("an engine with a fault")


ENDS: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "exception": _raise,
    "_exit": lambda: os._exit(3),
    "abort": os.abort,
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_does_not_detach_leaves_nothing(daemon: RunningDaemon, end: str) -> None:
    def live(client: Client, pipe: Connection) -> None:
        held = client.match(prompt(0)), client.reserve(prompt(1), PAGE), reserve_async(client, prompt(2), PAGE)
        pipe.send(len(held[0]))
        pipe.recv()
        os.close(2)  # suppresses its traceback
        faulthandler.disable()
        ENDS[end]()

    with daemon.client() as client:
        assert store(client, prompt(0)).stored == 8
        with attached(daemon.socket, live) as child:
            assert child.reported() == 8
            child.send(None)
            child.wait()
            assert eventually(lambda: len(daemon.slots()) == 1)
        assert eventually(lambda: daemon.header().used_frames == 8)
        assert not any(slot.pins for slot in daemon.slots())


# --- who sleeps over what follows ------------------------------------------------------------------------------------


def _sleep_over(client: Client, pipe: Connection) -> None:
    """Pins pages and reserves others; writes, publishes and reads after it was resumed."""
    match, reservation = client.match(prompt(0)), client.reserve(prompt(1), PAGE)
    pipe.send(len(match))
    pipe.recv()
    for page, key in enumerate(prompt(1)):
        reservation.write(page, page_of(key))
    out = np.zeros((8, PAGE), np.uint8)
    loaded = client.load(match, out)
    assert_exact(prompt(0), out[:loaded])
    pipe.send((reservation.publish().stored, loaded))
    pipe.recv()
    # Its thread may not yet know that the daemon is gone, and a reservation may expire before all pages are stored.
    pipe.send(eventually(lambda: stores(client, prompt(2))))
    pipe.recv()


@pytest.mark.parametrize("daemon_dies", [False, True])
def test_a_stopped_process_keeps_its_slot_and_its_reserved_frames(daemon: RunningDaemon, daemon_dies: bool) -> None:
    """It is stopped for longer than a reservation lasts, over a new daemon and many new clients, and then writes.

    Where the daemon lives on, its short reservations may expire in other clients, too: these then find fewer pages.
    """
    with ExitStack() as stack:
        other = stack.enter_context(daemon.client())
        assert store(other, prompt(0)).stored == 8
        daemon.kill()
        daemon.start("--constant", "store.reservation_timeout=1.5")
        sleeper = stack.enter_context(attached(daemon.socket, _sleep_over))
        assert sleeper.reported() == 8
        sleeper.signal(signal.SIGSTOP)
        if daemon_dies:
            daemon.kill()
            daemon.start()
        assert other.wait_attached(PATIENCE_S)
        newcomers = [stack.enter_context(daemon.client()) for _ in range(5)]
        assert eventually(lambda: daemon.header().doomed == 8 or daemon.header().dropped == 8)
        for newcomer in newcomers:
            fill(newcomer, 100 + newcomer.session.slot * 10, 4)  # type: ignore[union-attr]
        assert len({slot.slot for slot in daemon.slots()} | {0}) == 7
        sleeper.signal(signal.SIGCONT)
        assert sleeper.ask(None) == (0, 8), "its store is reported as late, and its pinned pages are unchanged"
        for newcomer in newcomers:
            first = 100 + newcomer.session.slot * 10  # type: ignore[union-attr]
            counts = [found(other, prompt(number)) for number in range(first, first + 4)]
            assert not daemon_dies or set(counts) <= {0, 8}
        assert found(other, prompt(1)) == 0
        assert sleeper.ask(None)
        assert eventually(lambda: daemon.header().open_entries == 0)


def test_a_process_stopped_over_a_restart_touches_only_the_old_segments(daemon: RunningDaemon) -> None:
    """The next daemon has other segments, in which its slot belongs to another process."""
    with ExitStack() as stack:
        first = stack.enter_context(daemon.client())
        assert store(first, prompt(0)).stored == 8
        first.close()
        sleeper = stack.enter_context(attached(daemon.socket, _sleep_over))
        assert sleeper.reported() == 8
        old = next(slot.slot for slot in daemon.slots() if slot.pid == sleeper.pid)
        sleeper.signal(signal.SIGSTOP)
        daemon.stop()
        daemon.start()
        newcomers = [stack.enter_context(daemon.client()) for _ in range(3)]
        assert old in [newcomer.session.slot for newcomer in newcomers if newcomer.session]
        for number in range(FRAMES // 8):
            assert store(newcomers[0], prompt(100 + number)).stored == 8
        sleeper.signal(signal.SIGCONT)
        sleeper.ask(None)
        assert [found(newcomers[1], prompt(100 + number)) for number in range(FRAMES // 8)] == [8] * (FRAMES // 8)
        assert eventually(lambda: daemon.header().open_entries == 0)
        assert not any(slot.pins for slot in daemon.slots())
        assert sleeper.ask(None)
