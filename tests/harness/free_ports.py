"""Ports on the loopback address that no process uses."""

from __future__ import annotations

import atexit
import itertools
import socket
from collections.abc import Iterator
from typing import Final

_FIRST: Final = 20_000
_EACH: Final = 500
_PROCESSES: Final = 25  # beyond their ports are those that the kernel gives to connections


def _ports() -> Iterator[int]:
    """Returns the ports of this process, again and again. Tests in other processes have others."""
    for first in range(_FIRST, _FIRST + _PROCESSES * _EACH, _EACH):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))  # claims the range until this process ends
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return itertools.cycle(range(first + 1, first + _EACH))
    raise RuntimeError(f"{_PROCESSES} processes have all ports of tests")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_OURS: Final = _ports()


def free_ports(count: int) -> list[int]:
    """Returns ports that no process uses and that no connection is given before a server binds them."""
    return list(itertools.islice(filter(_is_free, _OURS), count))
