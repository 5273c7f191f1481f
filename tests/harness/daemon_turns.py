"""Waits for turns of a daemon instead of for time: after two of them, what was due at the call has been done."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from eventually import PATIENCE_S

PUBLISHED: Final = 24
"""Turns in which more than a second passes: the daemon has published again what it reports once a second."""
_LOOKS: Final = 12  # two turns pass between two of them: a little more than a second in all


class Turns:
    """The turns of a daemon's periodic work, about twenty a second. It sends a keep-alive ping at the end of each.

    Attributes:
        environ: What the daemon's environment must contain.
        before: The command that runs the daemon in it: `RunningDaemon(before=turns.before)`.
    """

    def __init__(self) -> None:
        name = f"pagetier-test-{secrets.token_hex(6)}"
        self.environ = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "1"}
        self.before = ("env", *(f"{key}={value}" for key, value in self.environ.items()))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{name}")

    def pass_by(self, count: int = 2) -> None:
        """Returns when so many turns have begun and ended."""
        self.passed()
        self._socket.settimeout(PATIENCE_S)
        for _ in range(1 + count):  # the first one may have begun before
            while self._socket.recv(4096) != b"WATCHDOG=1":
                pass

    def sees_within_a_second(self, what: Callable[[], bool]) -> bool:
        """Returns whether a condition becomes true in the turns of a second, however long a busy machine takes."""
        for _ in range(_LOOKS):
            if what():
                return True
            self.pass_by(1)
        return what()

    def passed(self) -> int:
        """Returns how many turns have ended since the last call, as far as the socket's queue holds them."""
        self._socket.settimeout(0)
        pings = 0
        with suppress(BlockingIOError):
            while True:
                pings += self._socket.recv(4096) == b"WATCHDOG=1"
        return pings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
