"""The socket's folder is all that a container needs: tests with clients of another user in separate namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from keyed_pages import found, prompt, store
from running_daemon import RunningDaemon
from systemd_machine import BOOT, ENVIRON, PYTHON, REPOSITORY, skip_reason

STRANGER = 4712
pytestmark = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "it can run")


class Container:
    """A client in a container."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def report(self) -> dict[str, Any]:
        """Returns the client's report after it has stored."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client ended"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def kill(self) -> None:
        """Kills all processes of the container."""
        self._process.kill()
        self._process.wait()


@contextmanager
def container(daemon: RunningDaemon, first: int, count: int, user: int = STRANGER) -> Iterator[Container]:
    """Yields a client that sees, of the host, only programs and the folder of the daemon's socket."""
    site = sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        words = [str(BOOT), "container", folder, str(REPOSITORY), sys.base_prefix, site, daemon.folder.name, str(user)]
        words += [PYTHON, "/opt/pagetier/tests/systemd/contained_main.py", str(first), str(count)]
        environ = ENVIRON | {"PAGETIER_SOCKET": "/run/pagetier/pagetier.sock"}
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdout=pipe, stdin=pipe, text=True, env=environ) as process:
            try:
                yield Container(process)
            finally:
                process.kill()


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon(
        "16MiB", "64KiB", "--set", f"access.users={STRANGER}", "--set", "access.socket_mode=0666"
    ) as daemon:
        Path(daemon.folder.name).chmod(0o755)
        yield daemon


def test_pages_go_from_host_to_container_and_back(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        assert store(client, prompt(0, 5)).stored == 5
        with container(daemon, 5, 5) as other:
            report = other.report()
            assert report["pid"] == 1, "the container has no PID namespace of its own"
            assert report["seen"] == 1
            assert report["shm"] == [], "the container sees the host's /dev/shm"
            assert report["uid"] == STRANGER
            assert (report["attached"], report["found"], report["stored"]) == (True, 5, 5)
            assert found(client, prompt(0, 10)) == 10


def test_a_container_shares_with_another_and_its_death_is_noticed(daemon: RunningDaemon) -> None:
    with container(daemon, 0, 5) as first, container(daemon, 0, 5) as second:
        assert {first.report()["pid"], second.report()["pid"]} == {1}
        assert len(daemon.slots()) == 2
        first.kill()
        assert eventually(lambda: len(daemon.slots()) == 1)
        with container(daemon, 5, 1) as third:
            assert third.report()["found"] == 5


def test_a_container_of_an_unauthorized_user_is_rejected(daemon: RunningDaemon) -> None:
    with container(daemon, 0, 1, STRANGER + 1) as other:
        report = other.report()
        assert (report["attached"], report["stored"]) == (False, 0)
