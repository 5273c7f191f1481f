"""Tests the identity of peers: those that vanish or do not read, more of them than slots, and unknown users."""

from __future__ import annotations

import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from daemon_turns import Turns
from disk_daemon import DiskDaemon
from eventually import eventually
from in_process_server import Peer, serves
from open_descriptors import open_descriptors
from other_users import NOBODY, as_root, output_as
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.peer_credentials import Rights, peer_of, rights_of
from pagetier.daemon.index.slots import MOST_SLOTS
from pagetier.daemon.server.control_socket import locked_out
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import KEY_BYTES, page_requests
from pagetier.shm.protocol import (
    BUILD,
    Attach,
    Check,
    Detach,
    Findings,
    Flush,
    Observe,
    Refusal,
    Reserve,
    Space,
    Welcome,
)
from process_states import is_alive
from running_daemon import RunningDaemon

SLOTS = 56
EIGHT = IdRange(8, 8)


# --- peers that leave or do not read ---------------------------------------------------------------------------------


def test_peers_may_leave_before_their_response(path: Path) -> None:
    pages = page_requests(bytes(KEY_BYTES), struct.pack("<Q", 4096))
    reserve = Reserve(1, Space(b"d" * KEY_BYTES, "space", 16), 0, 1, pages)
    before = sum(open_descriptors().values())
    for _ in range(100):
        with Peer(path) as peer:
            peer.send(Attach(BUILD, 1, "hasty"))
        with Peer(path) as peer:
            peer.send(Attach(BUILD, 1, "hasty"), reserve)
    assert serves(path)
    # The slot of this process, which lives, keeps one descriptor.
    assert eventually(lambda: sum(open_descriptors().values()) <= before + 2)


def test_a_peer_that_reads_no_responses_gets_no_more(path: Path) -> None:
    with Peer(path) as deaf:
        deaf.observe()
        deaf.socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            for _ in range(100):
                deaf.send(*[Flush(1, "none")] * 10_000)
        assert serves(path)


def test_a_removed_segment_is_a_refusal_with_a_reason() -> None:
    with RunningDaemon() as daemon:
        index = Path("/dev/shm") / f"{daemon.name}.index"
        aside = index.with_suffix(".aside")
        index.rename(aside)
        with Peer(daemon.socket) as peer:
            answer = peer.ask(Observe(BUILD))
        assert isinstance(answer, Refusal)
        assert answer.reason == f"{index} was removed: restart the daemon"
        aside.rename(index)


# --- slots -----------------------------------------------------------------------------------------------------------

CROWD = """
import os, sys, time
from pathlib import Path
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Attach

def attach():
    try:
        return f"slot {Link(Path(sys.argv[1]), 10.0).greet(Attach(BUILD, 1, 'crowd'), 10.0).welcome.slot}"
    except LinkError as error:
        return error

for number in range(int(sys.argv[2])):
    if not os.fork():
        os.write(1, f"{os.getpid()} {attach()}\\n".encode())
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


@contextmanager
def crowd(path: Path, size: int) -> Iterator[dict[int, str]]:
    """Starts processes that attach and stay; yields the response to each of them, by pid."""
    command = [sys.executable, "-c", CROWD, str(path), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            lines = [parent.stdout.readline().rstrip().partition(" ") for _ in range(size)]
            yield {int(pid): text for pid, _, text in lines}
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_more_processes_than_slots() -> None:
    with RunningDaemon() as daemon, crowd(daemon.socket, SLOTS + 1) as responses:
        attached = [pid for pid, text in responses.items() if text.startswith("slot")]
        (refusal,) = (text for text in responses.values() if not text.startswith("slot"))
        assert len(attached) == SLOTS
        assert f"all {SLOTS} slots are taken" in refusal
        os.kill(attached[0], signal.SIGKILL)
        assert eventually(lambda: not is_alive(attached[0]))
        daemon.client().close()


def test_slots_of_a_crowd_that_dies_are_free_within_a_second(turns: Turns) -> None:
    with RunningDaemon(before=turns.before) as daemon:
        with crowd(daemon.socket, SLOTS) as responses:
            assert sorted(responses.values()) == sorted(f"slot {number}" for number in range(SLOTS))
        assert eventually(lambda: not any(map(is_alive, responses)))
        assert turns.sees_within_a_second(lambda: not daemon.slots())
        with crowd(daemon.socket, SLOTS) as responses:
            assert all(text.startswith("slot") for text in responses.values())


def test_no_engine_gets_the_slot_of_the_disk_tier() -> None:
    """Its slot stays reserved while the worker is dead; otherwise there would be no disk tier."""
    with DiskDaemon(64) as daemon, crowd(daemon.socket, SLOTS - 1) as responses:
        assert all(text.startswith("slot") for text in responses.values())
        daemon.kill_worker()

        def refused_until_it_is_back() -> bool:
            with Peer(daemon.socket) as late:
                answer = late.ask(Attach(BUILD, 1, "late"))
            assert isinstance(answer, Refusal) and f"all {SLOTS} slots are taken" in answer.reason
            report = daemon.report()
            return report.restarts > 0 and report.standing is Standing.OPEN

        assert eventually(refused_until_it_is_back), daemon.reported()


def test_one_process_has_a_quarter_of_the_slots(path: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(path)) for _ in range(MOST_SLOTS + 1)]
        answers = [peer.ask(Attach(BUILD, token, "greedy")) for token, peer in enumerate(peers)]
        assert all(isinstance(answer, Welcome) for answer in answers[:-1])
        assert isinstance(answers[-1], Refusal)
        assert f"this process has {MOST_SLOTS} slots" in answers[-1].reason
        with Peer(path) as again:
            assert again.ask(Attach(BUILD, 3, "greedy")) == answers[3], "it has that slot already"
        assert peers[5].ask(Detach(), Check(1)) == Findings(1, [])
        with Peer(path) as other:
            assert isinstance(other.ask(Attach(BUILD, 100, "greedy")), Welcome)


# --- access rights ---------------------------------------------------------------------------------------------------

_IMPORTS = """
from pathlib import Path
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Attach, Check, Flush, Observe, Resize, Save
"""
_GREET = """
for request in (Attach(BUILD, 1, "nobody"), Observe(BUILD)):
    try:
        print("slot", Link(Path(sys.argv[1]), 5.0).greet(request, 5.0).welcome.slot)
    except LinkError as error:
        print(error)
"""
_ASK = """
link = Link(Path(sys.argv[1]), 5.0)
link.greet(Observe(BUILD), 5.0)
for request in (Save(1), Flush(2, None), Check(3), Resize(4, {"evict.free": "0.5"})):
    print(type(link.ask(request, 5.0)).__name__)
"""


def as_nobody(daemon: RunningDaemon, *groups: int, code: str = _GREET) -> list[str]:
    """Returns the daemon's responses to a user without rights who is in these groups."""
    Path(daemon.folder.name).chmod(0o755)
    status, output = output_as(NOBODY, _IMPORTS, code, str(daemon.socket), groups=groups)
    assert status == 0, output
    return output.splitlines()


def open_to_all(*access: str) -> RunningDaemon:
    """Returns a daemon whose socket all users can open."""
    return RunningDaemon("16MiB", "64KiB", "--set", "access.socket_mode=0666", *access)


@as_root
def test_an_unknown_user_cannot_open_the_socket() -> None:
    with RunningDaemon() as daemon:
        assert all("Permission denied" in line for line in as_nobody(daemon))


@as_root
def test_an_unknown_user_that_can_open_the_socket_is_refused() -> None:
    with open_to_all() as daemon:
        lines = as_nobody(daemon)
        assert len(lines) == 2
        assert "user 65534 may not attach: access.users does not list it, nor access.groups one" in lines[0]
        assert "user 65534 may not watch: access.watch_users does not list it, nor access.watch_groups" in lines[1]


@as_root
@pytest.mark.parametrize(
    ("access", "groups"),
    [
        (("--set", "access.users=nobody"), ()),
        (("--set", "access.groups=65534"), ()),
        (("--set", "access.groups=4711"), (1, 4711)),
    ],
)
def test_a_configured_user_may_attach(access: tuple[str, ...], groups: tuple[int, ...]) -> None:
    with open_to_all(*access) as daemon:
        assert as_nobody(daemon, *groups) == ["slot 0", "slot -1"]


@as_root
@pytest.mark.parametrize("access", [("--set", "access.watch_users=nobody"), ("--set", "access.watch_groups=65534")])
def test_a_user_with_watch_access_may_not_attach(access: tuple[str, ...]) -> None:
    with open_to_all(*access) as daemon:
        refused, observed = as_nobody(daemon)
        assert "user 65534 may only watch" in refused
        assert observed == "slot -1"


@as_root
@pytest.mark.parametrize(
    ("access", "answers"),
    [
        ("access.watch_users", ["Refusal", "Refusal", "Refusal", "Refusal"]),
        ("access.users", ["Saved", "Flushed", "Findings", "Refusal"]),
    ],
)
def test_watching_users_change_nothing_and_attaching_users_no_sizes(access: str, answers: list[str]) -> None:
    with open_to_all("--set", f"{access}=nobody") as daemon:
        assert as_nobody(daemon, code=_ASK) == answers


@as_root
def test_the_socket_is_given_to_a_group() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "access.socket_group=4711", "--set", "access.groups=4711") as daemon:
        assert daemon.socket.stat().st_gid == 4711
        assert as_nobody(daemon, 4711) == ["slot 0", "slot -1"]
        assert all("Permission denied" in line for line in as_nobody(daemon))


@as_root
def test_a_mode_that_keeps_out_a_configured_user_is_logged() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "access.users=nobody") as daemon:
        assert 'set access.socket_mode = \\"0666\\"' in daemon.log.read_text()


def test_peers_are_identified_by_the_kernel(path: Path) -> None:
    with Peer(path) as peer:
        server = peer_of(peer.socket)
        os.close(server.pidfd)
        assert server.process.pid == os.getpid()
        assert server.uid == os.geteuid()
        assert os.getegid() in server.groups
        assert set(os.getgroups()) <= server.groups
        assert rights_of(server, AccessOptions()) is Rights.MANAGE


def test_the_warning_names_the_setting_that_waits_for_a_restart() -> None:
    found = os.stat_result((stat.S_IFSOCK | 0o660, 0, 0, 1, 0, 7, 0, 0, 0, 0))
    for access, words in (
        (AccessOptions(groups=(EIGHT,)), 'set access.socket_mode = "0666" and restart'),
        (AccessOptions(groups=(EIGHT,), socket_group=(8,)), "access.socket_group waits for a restart"),
        (AccessOptions(users=(EIGHT,), socket_mode=0o666), 'access.socket_mode = "0666" waits for a restart'),
        (AccessOptions(users=(EIGHT,), socket_mode=0o600), 'set access.socket_mode = "0666" and restart'),
    ):
        assert words in locked_out(found, access)
    assert locked_out(found, AccessOptions(groups=(IdRange(7, 8),)))
    assert locked_out(found, AccessOptions(groups=(IdRange(7, 7),))) == locked_out(found, AccessOptions()) == ""
