"""Tests who may attach across user namespaces: of engines, as in pods with hostUsers: false, and of the daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from other_users import as_root, environ_with
from running_daemon import RunningDaemon
from user_namespaces import command_in

pytestmark = as_root

USER, GROUP = 201000, 204710  # outside; inside 1000, and a supplementary group 4710
RANGE = "196608-262143"
ATTACHED = ["attached", "observes"]
OPEN = '[access]\nsocket_mode = "0666"\n'
BY_SOCKET = f'{OPEN}authorize_by = "socket"\n'
_ENGINE = """
import os, sys
from pathlib import Path
from user_namespaces import enter, mount_with_owners_of_inside
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Attach, Observe
IDS = "0 200000 65536"
if sys.argv[2] == "volume":
    mount_with_owners_of_inside(str(Path(sys.argv[1]).parent), IDS)
enter(IDS, 1000, 1000, 4710)
os.chdir("/")
for request in (Attach(BUILD, 1, "contained"), Observe(BUILD)):
    try:
        welcome = Link(Path(sys.argv[1]), 5.0).greet(request, 5.0).welcome
        print("attached" if welcome.slot >= 0 else "observes")
    except LinkError as error:
        print(error)
"""


def daemon_with(access: str, *before: str) -> RunningDaemon:
    """Returns a daemon whose configuration is in its file, so that a reload can change it."""
    daemon = RunningDaemon("1MiB", "64KiB", before=before)
    Path(daemon.folder.name).chmod(0o755)
    daemon.config.write_text(access)
    return daemon


def greetings_of_engine(daemon: RunningDaemon, mount: str = "folder") -> list[str]:
    """Returns the responses to an engine in a user namespace: to the request to attach, and to observe.

    Args:
        daemon: The daemon.
        mount: "volume" to mount the folder of the socket as the kubelet does; "folder" to leave it.
    """
    environ = environ_with({"PYTHONPATH": str(Path(__file__).parents[2] / "harness")})
    command = [sys.executable, "-c", _ENGINE, str(daemon.socket), mount]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_engine_in_a_user_namespace_is_admitted_by_its_range_or_by_the_socket() -> None:
    with daemon_with(OPEN) as daemon:
        attach, observe = greetings_of_engine(daemon)
        for words in (f"user {USER} may not attach: ", f"(201000, {GROUP})", "list the namespace's range (FIRST-LAST)"):
            assert words in attach
        assert f"user {USER} may not watch: access.watch_users does not list it" in observe
        daemon.reload(f'{OPEN}watch_users = ["{RANGE}"]\n')
        attach, observe = greetings_of_engine(daemon)
        assert f"user {USER} may only watch: access.users does not list it" in attach and observe == ATTACHED[1]
        for rules in (f'{OPEN}users = ["{RANGE}"]\n', f'{OPEN}groups = "4710,{RANGE}"\n', BY_SOCKET):
            daemon.reload(rules)
            assert greetings_of_engine(daemon) == ATTACHED, rules
        daemon.reload(f'{OPEN}users = ["{USER + 1}-262143", 1000]\ngroups = [4710]\n')
        assert f"user {USER} may not attach" in greetings_of_engine(daemon)[0]


def test_a_daemon_in_a_user_namespace_identifies_no_unmapped_user_by_a_number() -> None:
    """All processes of this host have the same number for it, 65534, which is also its own: no map exists."""
    with daemon_with(BY_SOCKET, *command_in("", 0, 0)) as daemon:
        assert greetings_of_engine(daemon) == ATTACHED
        daemon.reload(f"{OPEN}users = [65534]\ngroups = [65534]\n")
        for refused in greetings_of_engine(daemon):
            assert "user 65534 may not" in refused and "stands for everyone that the daemon's user" in refused
            assert 'set access.authorize_by = "socket"' in refused
        (warned,) = daemon.lines("event=users_unmapped")
        assert "access.users names 65534, which stands for everyone" in warned
        daemon.reload(BY_SOCKET)


def test_the_group_of_a_closed_socket_admits_a_pod_in_a_user_namespace() -> None:
    """The engine has the socket's group 4710 inside only. Its volume is mounted so that the group counts there."""
    closed = '[access]\nsocket_mode = "0660"\nsocket_group = "4710"\n'
    with daemon_with(f'{closed}authorize_by = "socket"\n') as daemon:
        assert greetings_of_engine(daemon, "volume") == ATTACHED
        assert all("Permission denied" in line for line in greetings_of_engine(daemon))
        daemon.reload(f'{closed}users = ["{RANGE}"]\n')
        assert greetings_of_engine(daemon, "volume") == ATTACHED
        daemon.reload(f"{closed}groups = [4710]\n")
        assert f"user {USER} may not attach" in greetings_of_engine(daemon, "volume")[0]
