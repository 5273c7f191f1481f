"""What systemd is told: a datagram a message, to the socket that it names; without one nobody is told anything."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_US: Final = 1_000_000
_PAUSE_S: Final = 0.5  # between two words on progress
_PINGS: Final = 3  # within the watchdog's time: one may be late, and one be lost


class Notifier:
    """Speaks sd_notify(3). From any thread; never raises, and never waits: what can not be sent at once is lost.

    watchdog: seconds within which systemd wants a sign of life, None if it wants none.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        told = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + told[1:] if told.startswith("@") else told
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.watchdog = _watchdog(environ)
        self._pinged = time.monotonic()
        self._told = -_PAUSE_S

    def ready(self, status: str) -> None:
        """The start is over, or the reload."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """How it is, and nothing else."""
        self._send(_status(text))

    def progress(self, status: str, seconds: float) -> None:
        """What takes so long; it will be over, or there will be news, within `seconds`. As often as one likes."""
        now = time.monotonic()
        if now - self._told > _PAUSE_S:
            self._told = now
            self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _US)}", _status(status))

    def reloading(self) -> None:
        """The configuration is being read again; ready() ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str, seconds: float) -> None:
        """The end has begun, and may take so long."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * _US)}", _status(status))

    def alive(self) -> None:
        """A sign of life: for the loop that does the work, as often as it likes."""
        now = time.monotonic()
        if self.watchdog is not None and now - self._pinged > self.watchdog / _PINGS:
            self._pinged = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Nobody is told anything any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)


def _status(text: str) -> str:
    """One line of it: the next would be taken for another message."""
    return "STATUS=" + " ".join(text.split())


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """What systemd asks of this process, and not of one above it."""
    told, whose = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not told.isdecimal() or not int(told) or whose not in ("", str(os.getpid())):
        return None
    return int(told) / _US
