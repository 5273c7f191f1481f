"""Where metrics may be served: what is read, and what is refused."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from pagetier.daemon.config.address import Address, address_setting
from pagetier.daemon.host.listening_socket import SocketError
from pagetier.daemon.http.listening_sockets import open_address

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
def test_an_invalid_address_is_rejected(raw: object) -> None:
    with pytest.raises(ValueError, match=r"not an address|too long"):
        SETTING.read(raw)


@pytest.mark.parametrize("raw", ["0.0.0.0:9464", "[::]:9464", "10.0.0.1:9464", "example.com:9464", "*:9464"])
def test_an_address_that_other_hosts_can_reach_is_rejected(raw: str) -> None:
    with pytest.raises(ValueError, match="not a loopback address"):
        SETTING.read(raw)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAFNOSUPPORT, "Address family .*`pagetier unit install --metrics`"),
        (errno.EACCES, r"Permission denied: ports below .* \(1024\) need root: set another port, or a path"),
        (errno.EADDRNOTAVAIL, "assign requested address: set another port, or a path"),
    ],
)
def test_a_port_that_can_not_be_had_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def none(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(SocketError, match=words):
        open_address(Address(host="127.0.0.1", port=9464), "metrics.listen", 0o660)


def test_a_path_that_can_not_be_had_is_told_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, words in (("file", "remove it, or set another metrics.listen"), ("file/s", "set another metrics.listen")):
        with pytest.raises(SocketError, match=words):
            open_address(Address(path=tmp_path / path), "metrics.listen", 0o660)
    with pytest.raises(SocketError, match=r"metrics.listen = .*: File name too long"):
        open_address(Address(path=tmp_path / ("x" * 300)), "metrics.listen", 0o660)
