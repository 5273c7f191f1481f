"""Clients that are closed, fork or end while they attach: no slot stays in use while their process lives."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest

from child_process import in_child
from client_threads import client_threads, clients_end
from eventually import PATIENCE_S, eventually, pace
from fake_daemon import FakeDaemon
from keyed_pages import PAGE, in_memory, prompt, store
from pagetier.client import Client, reconnect
from pagetier.client.adapters import reserve_async
from pagetier.shm import clock
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import Attach
from rescued_wait import HOUR_S
from running_daemon import RunningDaemon
from virtual_clock import VirtualClock, in_main_thread

KEYS, MORE = prompt(0, 10), prompt(1, 10)
LONGEST_MOMENT_S = 0.004  # longer than attaching takes


def no_slot_in_use(daemon: RunningDaemon) -> bool:
    """Returns whether no slot is in use. A crowded daemon may reject this connection, which is then repeated."""
    try:
        return not daemon.slots()
    except LinkError:
        return False


def attaches_at_once(daemon: RunningDaemon) -> bool:
    """Returns whether one more client attaches at once, and leaves no slot in use."""
    with Client(daemon.socket) as client:
        attached = client.wait_attached(PATIENCE_S)
    return attached and eventually(lambda: no_slot_in_use(daemon))


def at_once(_: random.Random) -> None:
    """Waits for no time."""


def some_time(chance: random.Random) -> None:
    pace(chance.uniform(0, LONGEST_MOMENT_S))


@pytest.mark.parametrize("moment", [at_once, some_time])
def test_clients_that_are_closed_while_they_attach_leave_no_slot(
    daemon: RunningDaemon, moment: Callable[[random.Random], None]
) -> None:
    chance, logged = random.Random(17), len(daemon.log.read_text())
    for _ in range(1000):
        with Client(daemon.socket) as client:
            moment(chance)
            client.match(KEYS)
    assert attaches_at_once(daemon)
    assert "this process has" not in daemon.log.read_text()[logged:], "there was always a free slot"


def test_clients_that_are_dropped_while_they_attach_leave_no_slot(daemon: RunningDaemon) -> None:
    """The clients are closed by the garbage collector only."""
    for _ in range(300):
        Client(daemon.socket).match(KEYS)
    assert eventually(lambda: no_slot_in_use(daemon))
    assert attaches_at_once(daemon)


def test_clients_that_are_closed_while_the_daemon_is_stopped_leave_no_slot(daemon: RunningDaemon) -> None:
    """The daemon is stopped at any moment of the clients, before or after it has read their Attach."""
    chance = random.Random(17)
    for _ in range(6):
        clients = [Client(daemon.socket, timeout=0.2) for _ in range(10)]
        some_time(chance)
        daemon.signal(signal.SIGSTOP)
        clients += [Client(daemon.socket, timeout=0.2) for _ in range(10)]
        for client in clients:
            some_time(chance)
            client.close()
        daemon.signal(signal.SIGCONT)
        assert eventually(lambda: no_slot_in_use(daemon))
    assert attaches_at_once(daemon)


def test_a_crowd_that_leaves_a_stopped_daemon_leaves_no_slot(daemon: RunningDaemon) -> None:
    """There are more clients than the daemon's queue has room for."""
    daemon.signal(signal.SIGSTOP)
    for _ in range(200):
        Client(daemon.socket, timeout=0.01).close()
    daemon.signal(signal.SIGCONT)
    assert eventually(lambda: no_slot_in_use(daemon))
    assert attaches_at_once(daemon)


@pytest.mark.parametrize("closed_while", ["it is dead", "it is stopped"])
def test_a_client_that_is_closed_without_a_daemon_gives_its_slot_to_the_next_one(closed_while: str) -> None:
    """The segments keep the slot while its process lives, and only the client can report that the slot is free."""
    with RunningDaemon() as daemon, daemon.client() as other:
        others = client_threads()
        client = daemon.client(timeout=HOUR_S)
        assert store(client, KEYS).stored == 10
        match = client.match(KEYS)
        daemon.signal(signal.SIGKILL if closed_while == "it is dead" else signal.SIGSTOP)
        assert closed_while == "it is stopped" or eventually(lambda: not client.attached)
        client.close()  # it does not wait for the daemon
        assert not match.pinned or client.load(match, bytearray(10 * PAGE)) == 0
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon.start()
        assert other.wait_attached(PATIENCE_S)
        assert eventually(lambda: len(daemon.slots()) == 1)
        assert clients_end(others), "without the daemon's confirmation it would look for the next one"
        assert store(other, MORE).stored == 10


def test_a_client_that_is_closed_while_it_attaches_again_leaves_no_slot() -> None:
    chance = random.Random(17)
    with RunningDaemon() as daemon:
        for _ in range(4):
            clients = [daemon.client() for _ in range(10)]
            daemon.kill()
            daemon.start()
            for client in clients:
                some_time(chance)
                client.close()
            assert eventually(lambda: no_slot_in_use(daemon))


def test_a_client_that_is_closed_as_it_connects_again_detaches_only_after_attach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon takes no Detach before Attach: it would close the connection, and log that as a fault of the client."""
    others = client_threads()
    with FakeDaemon() as daemon, Client(daemon.socket) as client:
        assert client.wait_attached(PATIENCE_S)

        class ClosedOnceConnected(Link):
            def __init__(self, path: Path, timeout: float) -> None:
                super().__init__(path, timeout)
                client._attachment._thread.stop_soon()

        monkeypatch.setattr(reconnect, "Link", ClosedOnceConnected)
        daemon.hang_up()
        assert clients_end(others), "the daemon has not confirmed that its slot is free"
        assert list(map(type, daemon.first_requests)) == [Attach, Attach]


def test_a_client_that_is_closed_after_the_daemon_released_its_memory_ends() -> None:
    """There is no slot any more, and no daemon to report to."""
    others = client_threads()
    with RunningDaemon() as daemon:
        client = daemon.client()
        assert daemon.stop() == 0
        client.close()
        assert clients_end(others)
        daemon.start()


def test_a_process_that_forks_while_it_attaches(daemon: RunningDaemon) -> None:
    """The child gets a slot of its own, and the parent keeps the one that is being assigned."""
    chance = random.Random(17)
    for _ in range(40):
        with Client(daemon.socket) as client:
            some_time(chance)

            def child(client: Client = client) -> None:
                client.match(KEYS)
                assert client.wait_attached(PATIENCE_S)
                client.close()

            assert in_child(child) == 0
            assert client.wait_attached(PATIENCE_S)
    assert eventually(lambda: no_slot_in_use(daemon))


_ENDS = """
import sys, time
from pagetier.client import Client
client = Client(sys.argv[1])
time.sleep(float(sys.argv[2]))
if sys.argv[3] == "close":
    client.close()
"""


@pytest.mark.parametrize("how", ["exit", "close"])
def test_an_interpreter_that_ends_while_it_attaches(daemon: RunningDaemon, how: str) -> None:
    chance = random.Random(17)
    for _ in range(4):
        moment = str(chance.uniform(0, LONGEST_MOMENT_S))
        command = [sys.executable, "-c", _ENDS, str(daemon.socket), moment, how]
        ended = subprocess.run(command, capture_output=True, check=True)
        assert ended.stderr == b""
    assert eventually(lambda: no_slot_in_use(daemon))


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the interrupt may hit a callback of Python itself
def test_a_keyboard_interrupt_while_it_attaches(daemon: RunningDaemon) -> None:
    chance = random.Random(17)
    for _ in range(60):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 0.003))
            with Client(daemon.socket) as client:
                client.wait_attached(PATIENCE_S)
                eventually(lambda: False, 1.0)  # until the interrupt comes, unless Python ignored it in a finalizer
        except (KeyboardInterrupt, RuntimeError) as error:  # Python's own locks may answer an interrupt with the latter
            assert isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert eventually(lambda: no_slot_in_use(daemon))


def test_no_lock_is_entered_in_steps_that_an_interrupt_may_divide(daemon: RunningDaemon) -> None:
    """A condition's enter is Python code: an interrupt after it, and before the block, would leave the lock taken."""
    callers: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        above = frame.f_back
        while above is not None and above.f_globals["__name__"] == "threading":  # an Event, or the start of a Thread
            above = above.f_back
        caller = above.f_globals["__name__"] if above is not None else ""
        if frame.f_code is threading.Condition.__enter__.__code__ and caller.startswith("pagetier."):
            callers.add(caller)

    with ExitStack() as stack:
        stack.callback(sys.settrace, sys.gettrace())
        sys.settrace(note)
        client = stack.enter_context(Client(daemon.socket))
        assert client.wait_attached(PATIENCE_S)
        store(client, KEYS)
        client.match(KEYS).release()
    assert callers == set()


_SHORT_OF_ADDRESSES = """
import logging, resource, sys, time
from pagetier.client import Client
logging.basicConfig(format="%(message)s")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
client = Client(sys.argv[1])
assert not client.wait_attached(1.0)
sys.stdin.readline()
"""


def test_a_log_line_names_the_limit_on_the_address_space() -> None:
    """A failure to map the segments is not reported as a missing daemon, and the client keeps no slot."""
    with RunningDaemon("512MiB", "1MiB", "--set", "arena.prefault=lazy") as daemon:
        command = [sys.executable, "-c", _SHORT_OF_ADDRESSES, str(daemon.socket)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as engine:
            assert engine.stderr is not None
            line = engine.stderr.readline().decode()
            assert "cannot map the daemon's segments of 0.5 GiB" in line and "RLIMIT_AS, ulimit -v" in line, line
            assert "cannot reach the daemon" not in line
            assert eventually(lambda: no_slot_in_use(daemon))
            engine.communicate(b"\n")
            assert engine.returncode == 0


# ---- the first calls


def test_a_first_store_waits_for_the_attachment(daemon: RunningDaemon) -> None:
    for _ in range(5):
        with Client(daemon.socket, timeout=PATIENCE_S) as client:
            result = client.store(KEYS, [bytes(8)] * 10)
            assert result.stored + result.present == 10, result
    with Client(daemon.socket, timeout=PATIENCE_S) as client, client.reserve(MORE, PAGE) as reservation:
        assert reservation.granted.size == 10


def test_match_prefetch_and_reserve_async_do_not_wait_for_the_attachment(daemon: RunningDaemon) -> None:
    daemon.signal(signal.SIGSTOP)
    with Client(daemon.socket, timeout=HOUR_S) as client:
        assert in_memory(client, KEYS) == 0
        assert client.prefetch(KEYS).ready and reserve_async(client, KEYS, 8).ready
        assert store(client, KEYS, timeout=0).refused == 10
    daemon.signal(signal.SIGCONT)


def test_one_call_waits_for_a_daemon_that_hangs_while_it_attaches(
    daemon: RunningDaemon, standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = prompt(2, 10)
    daemon.signal(signal.SIGSTOP)
    with Client(daemon.socket, timeout=HOUR_S) as client:
        standing_clock.is_stuck = in_main_thread
        for took in (HOUR_S, 0.0, 0.0):
            began = standing_clock.now
            assert client.store(keys, [bytes(8)] * 10).refused == 10
            assert standing_clock.now - began == pytest.approx(took)
        standing_clock.is_stuck = lambda: False
        monkeypatch.undo()  # real time again, except for a wait that the client's thread has begun
        daemon.signal(signal.SIGCONT)

        def attached() -> bool:
            standing_clock.passes(HOUR_S)
            return client.attached

        assert eventually(attached)
        assert store(client, keys).stored == 10


def test_waiting_for_an_attachment_ends_at_the_timeout(tmp_path: Path, standing_clock: VirtualClock) -> None:
    with Client(tmp_path / "none.sock") as client:
        standing_clock.is_stuck = in_main_thread
        for timeout in (0.0, 0.3, HOUR_S):
            began = standing_clock.now
            assert not client.wait_attached(timeout)
            assert standing_clock.now - began == pytest.approx(timeout)
        standing_clock.is_stuck = lambda: False


def test_a_copy_that_does_not_end_keeps_close_for_the_timeout_and_the_thread_for_five_seconds(
    standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    retiring = threading.Event()

    def sleep(seconds: float) -> None:
        retiring.set()
        standing_clock.sleep(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    with RunningDaemon() as daemon, ExitStack() as stack:
        client = daemon.client(timeout=1.0)
        session, thread, began = client.session, client._attachment._thread._thread, standing_clock.now
        assert session is not None
        session.retain_arena()  # as a copy does for which this process cannot wait
        stack.callback(session.release_arena)
        standing_clock.is_stuck = lambda: in_main_thread() and retiring.is_set()
        client.close()
        assert standing_clock.now - began == pytest.approx(1.0)
        standing_clock.is_stuck = lambda: False
        standing_clock.passes(3.9)
        assert thread.is_alive()
        standing_clock.passes(0.2)
        assert eventually(lambda: not thread.is_alive())


@pytest.mark.parametrize("there", ["nothing", "a socket of the dead"])
def test_without_a_daemon_the_first_store_is_rejected_at_once(there: str, tmp_path: Path) -> None:
    path = tmp_path / "pagetier.sock"
    if there != "nothing":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(os.fspath(path))
    for _ in range(20):
        with Client(path, timeout=HOUR_S) as client:
            assert store(client, KEYS, timeout=HOUR_S).refused == 10


def test_a_store_of_a_rejected_client_fails_at_once(daemon: RunningDaemon) -> None:
    clients = [daemon.client() for _ in range(14)]
    with Client(daemon.socket, timeout=HOUR_S) as client:
        assert store(client, KEYS, timeout=HOUR_S).refused == 10
    for one in clients:
        one.close()
    assert attaches_at_once(daemon)
