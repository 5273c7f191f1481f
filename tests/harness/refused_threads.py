"""A process that may start few threads more, as under TasksMax of systemd and RLIMIT_NPROC."""

from __future__ import annotations

import threading

import pytest


def allow_threads(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process start so many threads from now on."""
    left, start = iter(range(most)), threading.Thread.start

    def start_allowed(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_allowed)
