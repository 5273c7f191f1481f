"""The types of settings that are paths."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pagetier.daemon.config.value_types import Setting
from pagetier.shm.units import shown

# struct sockaddr_un has 108 bytes for the path and its terminating zero
_SOCKET_PATH_LIMIT = 107
# Commas are allowed in a path; an absolute one begins a new path only after a comma.
_BETWEEN_PATHS = re.compile(r",(?=\s*/)")

NOT_UTF8 = "has a name that is not UTF-8: rename it"


def is_utf8(path: str) -> bool:
    """Returns whether a path can be written into messages and the status. Linux allows any bytes in it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def socket_setting(help: str) -> Setting:
    """Returns a setting for an absolute path that fits into the address of a Unix socket."""

    def read(raw: object) -> Path:
        path = _absolute(raw)
        if len(os.fsencode(str(raw))) > _SOCKET_PATH_LIMIT:
            raise ValueError(f"{shown(raw)} is too long for a socket: at most {_SOCKET_PATH_LIMIT} bytes")
        return path

    return Setting(read=read, show=str, metavar="PATH", help=help)


def file_setting(help: str) -> Setting:
    """Returns a setting for the absolute path of a file; an empty value means none."""

    def read(raw: object) -> Path | None:
        return _absolute(raw) if raw != "" else None

    return Setting(read=read, show=lambda path: str(path or ""), metavar="PATH", help=help)


def folders_setting(help: str) -> Setting:
    """Returns a setting for the absolute paths of folders, in a list or in one string with commas; "" means none."""

    def read(raw: object) -> tuple[Path, ...]:
        if isinstance(raw, str):
            return tuple(_absolute(item.lstrip()) for item in _BETWEEN_PATHS.split(raw) if item)
        if not isinstance(raw, list):
            raise ValueError(f"{shown(raw)} is not a path")
        return tuple(map(_absolute, raw))

    return Setting(read=read, show=lambda paths: ",".join(map(str, paths)), metavar="PATH,...", help=help)


def _absolute(raw: object) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError(f"{shown(raw)} is not a path")
    if not is_utf8(raw):
        raise ValueError(f"{shown(raw)} {NOT_UTF8}")
    if not raw.startswith("/"):
        meant = Path(os.path.expanduser(raw)).absolute()  # noqa: PTH111 - that of Path raises for unknown users
        raise ValueError(f"{shown(raw)} is not an absolute path ({meant} is)")
    return Path(raw)
