"""Ports on the loopback address that no process uses."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago, far from those that the kernel gives to connections."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
