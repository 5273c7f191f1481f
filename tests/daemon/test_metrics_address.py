"""Where metrics may be served: what is read, and what is refused."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from pagetier.daemon.metrics import listener
from pagetier.daemon.metrics.address import Address, address_setting
from pagetier.daemon.server import SocketError

SETTING = address_setting("")


@pytest.mark.parametrize(
    ("raw", "address", "shown"),
    [
        ("", None, ""),
        (9464, Address(host="127.0.0.1", port=9464), "127.0.0.1:9464"),
        ("9464", Address(host="127.0.0.1", port=9464), "127.0.0.1:9464"),
        ("127.0.0.2:1", Address(host="127.0.0.2", port=1), "127.0.0.2:1"),
        ("localhost:9464", Address(host="localhost", port=9464), "localhost:9464"),
        ("[::1]:9464", Address(host="::1", port=9464), "[::1]:9464"),
        ("/run/m.sock", Address(path=Path("/run/m.sock")), "/run/m.sock"),
    ],
)
def test_what_is_read_is_shown_as_it_would_be_written(raw: object, address: Address | None, shown: str) -> None:
    assert SETTING.read(raw) == address
    assert SETTING.show(address) == shown
    assert SETTING.read(shown) == address


@pytest.mark.parametrize(
    "raw", [0, -1, 65536, True, None, [], "run/m.sock", "127.0.0.1", "127.0.0.1:", ":x", "/" * 200]
)
def test_what_is_no_address_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match=r"no address|too long"):
        SETTING.read(raw)


@pytest.mark.parametrize("raw", ["0.0.0.0:9464", "[::]:9464", "10.0.0.1:9464", "example.com:9464", "*:9464"])
def test_what_others_could_reach_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="not of this host alone"):
        SETTING.read(raw)


def test_a_service_without_a_network_is_told_how_it_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(SocketError, match=r"Address family .*`pagetier unit install --metrics`"):
        listener._open(Address(host="127.0.0.1", port=9464), 0o660)
