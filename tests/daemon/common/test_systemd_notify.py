"""Tests the messages to systemd."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import PATIENCE_S
from pagetier.daemon.common.systemd_notify import Notifier
from pagetier.shm import clock


class Systemd:
    """The receiving end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE_S)

    def heard(self) -> list[str]:
        """Returns the lines of all messages so far."""
        lines: list[str] = []
        self.socket.settimeout(0)
        try:
            while True:
                lines += self.socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    place = str(tmp_path / "notify") if request.param == "path" else f"@pagetier-test-{secrets.token_hex(6)}"
    systemd = Systemd(place)
    yield systemd
    systemd.socket.close()


def notifier(systemd: Systemd, **more: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": systemd.address, **more})


def set_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Lets the clock stand still at this time."""
    monkeypatch.setattr(clock, "now", lambda: seconds)


def test_every_message_is_sent(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, 1.5)
    sender = notifier(systemd)
    sender.progress("half", 2)
    sender.progress("too soon for another report", 2)
    sender.ready("all\nis well")
    sender.reloading()
    sender.stopping("bye", 1.5)
    lines = systemd.heard()
    assert lines == [
        *("EXTEND_TIMEOUT_USEC=2000000", "STATUS=half"),
        *("READY=1", "STATUS=all is well"),
        *("RELOADING=1", "MONOTONIC_USEC=1500000"),
        *("STOPPING=1", "EXTEND_TIMEOUT_USEC=1500000", "STATUS=bye"),
    ]
    sender.close()
    sender.ready("after close")
    assert systemd.heard() == []


def test_a_path_that_is_not_utf_8_is_sent_with_question_marks(systemd: Systemd) -> None:
    sender = notifier(systemd)
    sender.ready(f"serving on {os.fsdecode(bytes([47, 0xE9]))}")
    assert systemd.heard() == ["READY=1", "STATUS=serving on /?"]
    sender.close()


def test_keep_alive_pings_are_sent_in_time_and_not_too_often(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, 1.0)
    sender = notifier(systemd, WATCHDOG_USEC="300000", WATCHDOG_PID=str(os.getpid()))
    assert sender.watchdog == 0.3
    for step in range(64):
        set_time(monkeypatch, 1 + step / 128)  # half a second in all
        sender.alive()
    assert systemd.heard() == ["WATCHDOG=1"] * 4
    sender.close()


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "300000", "WATCHDOG_PID": "1"}])
def test_without_a_watchdog_no_pings_are_sent(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    set_time(monkeypatch, 1.0)
    sender = notifier(systemd, **more)
    assert sender.watchdog is None
    set_time(monkeypatch, 100.0)
    sender.alive()
    assert systemd.heard() == []
    sender.close()


def test_without_systemd_nothing_happens() -> None:
    sender = Notifier({})
    sender.ready("")
    sender.progress("", 1)
    sender.close()


def test_a_missing_or_busy_systemd_is_not_waited_for(tmp_path: Path) -> None:
    sender = Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")})
    sender.ready("nobody")
    sender.close()
    deaf = Systemd(str(tmp_path / "deaf"))
    sender = notifier(deaf)
    for _ in range(2000):
        sender.ready("x" * 100)
    sender.close()
    assert 0 < len(deaf.heard()) < 2000, "what does not fit is lost"
    deaf.socket.close()
