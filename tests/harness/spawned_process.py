"""Functions that tests run in spawned processes, which import them by this module's name."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pagetier.client import Client, Keys, Part

_SPAWN = get_context("spawn")


def elsewhere(work: Callable[..., None], *arguments: Any) -> Connection:
    """Returns the other end of a pipe after starting a process that runs `work(*arguments, pipe)`.

    Closing it ends the process.
    """
    here, there = _SPAWN.Pipe()
    _SPAWN.Process(target=work, args=(*arguments, there), daemon=True).start()
    there.close()
    return here


def write_part(socket: Path, keys: Keys, page_bytes: int, part: Part, pipe: Connection) -> None:
    """Reserves a part of each page, sends how many were granted, and publishes them on request."""
    size = page_bytes // part.count
    with Client(socket) as client:
        assert client.wait_attached(10)
        with client.reserve(keys, page_bytes, part) as reservation:
            pipe.send(len(reservation.granted))
            pipe.recv()
            for page in range(len(keys)):
                reservation.write(page, np.full(size, part.index, np.uint8), part.index * size)
            pipe.send(reservation.publish().stored)
