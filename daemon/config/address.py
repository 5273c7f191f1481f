"""The setting for an address of this host: a port, a host with a port, or the path of a socket."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagetier.daemon.config.path_types import socket_setting
from pagetier.daemon.config.value_types import Setting
from pagetier.shm.units import shown

_EXAMPLES = '"127.0.0.1:9464", "[::1]:9464" or "/run/pagetier/metrics.sock"'
_LOCAL = "127.0.0.1"
_PATH = socket_setting("")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Either the path of a socket, or an address of this host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_setting(help: str) -> Setting:
    """Returns a setting for an absolute path, a port, or an address of this host and a port; empty means none."""

    def read(raw: object) -> Address | None:
        return None if raw == "" else _read_address(raw)

    return Setting(read=read, show=lambda address: str(address or ""), metavar="ADDRESS", help=help)


def addresses_setting(help: str) -> Setting:
    """Returns a setting for several addresses, in a list or in one string with commas; empty means none."""

    def read(raw: object) -> tuple[Address, ...]:
        items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) and raw.strip() else raw
        items = [items] if isinstance(items, int) else items or []
        if not isinstance(items, list):
            raise ValueError(f"{shown(raw)} is not a list of addresses: write {_EXAMPLES}")
        return tuple(dict.fromkeys(map(_read_address, items)))

    return Setting(read=read, show=lambda found: ",".join(map(str, found)), metavar="ADDRESS,...", help=help)


def _read_address(raw: object) -> Address:
    if isinstance(raw, str) and raw.startswith("/"):
        return Address(path=_PATH.read(raw))
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise ValueError(f"{shown(raw)} is not an address: write {_EXAMPLES}")
    return _read_port(str(raw))


def _read_port(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{shown(text)} is not an address: write {_EXAMPLES}")
    host = host.removeprefix("[").removesuffix("]") or _LOCAL
    if not _is_local(host):
        raise ValueError(f"{shown(text)} is not a loopback address: write {_EXAMPLES}; a proxy can serve other hosts")
    return Address(host=host, port=int(port))


def _is_local(host: str) -> bool:
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
