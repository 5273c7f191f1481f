"""Ports on the loopback address that no process uses."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

_FIRST: Final = 20_000
_EACH: Final = 500
_PROCESSES: Final = 25  # beyond their ports are those that the kernel gives to connections


def _ports() -> Iterator[int]:
    """Yields the ports of this process, which tests beside it have others of."""
    first = _FIRST + os.getpid() % _PROCESSES * _EACH
    return itertools.cycle(range(first, first + _EACH))


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
