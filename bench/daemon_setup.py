"""A daemon for benchmarks, with its own segments and socket, that leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from pagetier.client import Client
from pagetier.daemon.config.fields import fields
from pagetier.daemon.config.schema import PREFIX

_START_S = 120.0


class Stage:
    """Runs `pagetierd` with the given arguments and environment variables while the context lasts."""

    PROGRAM = """
try:
    from pagetier.daemon.start import start
except ImportError:  # make compare runs older commits, too
    from pagetier.daemon.main import main as start
start()
"""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.name = f"pagetier-bench-{secrets.token_hex(4)}"
        self._folder = tempfile.TemporaryDirectory(prefix="pagetier-bench-")
        self.socket = Path(self._folder.name) / "pagetier.sock"
        self._arguments = arguments
        known = {field.variable for field in fields()}  # another commit may lack some
        self._environment = {
            name: value for name, value in environment.items() if name in known or not name.startswith(PREFIX)
        }

    def start(self) -> None:
        """Starts the daemon, or restarts it."""
        command = [sys.executable, "-c", self.PROGRAM]
        command += ["--name", self.name, "--socket", str(self.socket), *self._arguments]
        self._process = subprocess.Popen(
            command, env=os.environ | {"PAGETIER_LOG_LEVEL": "warning"} | self._environment
        )

    @property
    def pid(self) -> int:
        """The daemon's process ID."""
        return self._process.pid

    def kill(self) -> None:
        """Kills the daemon like a crash: the segments stay."""
        self._process.kill()
        self._process.wait()

    def client(self) -> Client:
        """Returns an attached client."""
        client = Client(self.socket, timeout=10)
        if not client.wait_attached(_START_S):
            raise SystemExit("the daemon did not become ready")
        return client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_START_S)
        self._folder.cleanup()


def settle() -> None:
    """Gives background work of client and daemon the time to end."""
    time.sleep(0.3)
