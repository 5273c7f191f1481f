"""What systemd is told, and when it is told nothing."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagetier.daemon.common.systemd_notify import Notifier


class Systemd:
    """The other end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(5)

    def heard(self) -> list[str]:
        """The lines of all that was said so far."""
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


def test_all_that_is_said(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pagetier.daemon.common.systemd_notify._PAUSE_S", 60.0
    )  # too soon is too soon also on a slow machine
    told = notifier(systemd)
    before = time.monotonic_ns() // 1000
    told.progress("half", 2)
    told.progress("too soon to be told again", 2)
    told.ready("all\nis well")
    told.reloading()
    told.stopping("bye", 1.5)
    lines = systemd.heard()
    moment = int(lines.pop(5).removeprefix("MONOTONIC_USEC="))
    assert before <= moment <= time.monotonic_ns() // 1000
    assert lines == [
        *("EXTEND_TIMEOUT_USEC=2000000", "STATUS=half"),
        *("READY=1", "STATUS=all is well"),
        "RELOADING=1",
        *("STOPPING=1", "EXTEND_TIMEOUT_USEC=1500000", "STATUS=bye"),
    ]
    told.close()
    told.ready("nobody hears")
    assert systemd.heard() == []


def test_a_path_that_is_no_text_is_told_as_well_as_it_can_be(systemd: Systemd) -> None:
    told = notifier(systemd)
    told.ready(f"serving on {os.fsdecode(bytes([47, 0xE9]))}")
    assert systemd.heard() == ["READY=1", "STATUS=serving on /?"]
    told.close()


class Clock:
    """Stands still unless it is told to go on."""

    now = 1.0

    def monotonic(self) -> float:
        return self.now


def test_signs_of_life_in_time_and_no_more(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("pagetier.daemon.common.systemd_notify.time", clock)
    told = notifier(systemd, WATCHDOG_USEC="300000", WATCHDOG_PID=str(os.getpid()))
    assert told.watchdog == 0.3
    for step in range(64):
        clock.now = 1 + step / 128  # half a second in all
        told.alive()
    assert systemd.heard() == ["WATCHDOG=1"] * 4
    told.close()


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "300000", "WATCHDOG_PID": "1"}])
def test_no_signs_of_life_where_none_are_asked_for(systemd: Systemd, more: dict[str, str]) -> None:
    told = notifier(systemd, **more)
    assert told.watchdog is None
    time.sleep(0.15)
    told.alive()
    assert systemd.heard() == []
    told.close()


def test_without_systemd_nothing_happens() -> None:
    told = Notifier({})
    told.ready("")
    told.progress("", 1)
    told.close()


def test_a_systemd_that_is_gone_or_does_not_listen_is_not_waited_for(tmp_path: Path) -> None:
    told = Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")})
    told.ready("nobody")
    told.close()
    deaf = Systemd(str(tmp_path / "deaf"))
    told = notifier(deaf)
    began = time.monotonic()
    for _ in range(2000):
        told.ready("x" * 100)
    assert time.monotonic() - began < 10
    told.close()
    deaf.socket.close()
