"""Reports the daemon's state to systemd, as datagrams to the socket that systemd names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from pagetier.shm import clock

_US: Final = 1_000_000
_PAUSE_S: Final = 0.5  # between two reports of progress
_PINGS: Final = 3  # per watchdog period: one may be late, and one be lost


class Notifier:
    """Implements sd_notify(3).

    Thread-safe; never raises and never waits: a message that cannot be sent at once is lost.

    Without a socket nothing is sent.

    Attributes:
        watchdog: The seconds within which systemd expects a keep-alive ping; None if the watchdog is off.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.watchdog = _watchdog(environ)
        self._pinged = clock.now()
        self._progress_at = -_PAUSE_S

    def ready(self, status: str) -> None:
        """Reports that the start or the reload is complete."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """Reports a status text only."""
        self._send(_status(text))

    def progress(self, status: str, seconds: float) -> None:
        """Reports a long operation and asks for `seconds` until the next report. May be called as often as needed."""
        now = clock.now()
        if now - self._progress_at > _PAUSE_S:
            self._progress_at = now
            self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _US)}", _status(status))

    def reloading(self) -> None:
        """Reports that a reload has begun; ready() ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(clock.now() * _US)}")

    def stopping(self, status: str, seconds: float) -> None:
        """Reports that the stop has begun and may take `seconds`."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(seconds * _US)}", _status(status))

    def alive(self) -> None:
        """Sends a keep-alive ping if one is due. To be called often by the loop that does the work."""
        now = clock.now()
        if self.watchdog is not None and now - self._pinged > self.watchdog / _PINGS:
            self._pinged = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Closes the socket: nothing is sent from now on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)


def _status(text: str) -> str:
    """Returns the text in one line, since the next line would be another message."""
    return "STATUS=" + " ".join(text.split())


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Returns the watchdog's period in seconds, unless systemd watches a parent process instead."""
    period, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not period.isdecimal() or not int(period) or process not in ("", str(os.getpid())):
        return None
    return int(period) / _US
