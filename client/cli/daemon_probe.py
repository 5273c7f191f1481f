"""Finds out whether a daemon that was started a moment ago accepts clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Attach, Detach

_PROBE_S: Final = 1.0


def accepts_clients(socket: Path, name: str) -> bool:
    """Returns whether clients may attach, by attaching under this name and detaching.

    Observers are accepted earlier than clients.
    """
    try:
        link = Link(socket, _PROBE_S)
    except LinkError:
        return False
    try:
        for descriptor in link.greet(Attach(BUILD, 0, name), _PROBE_S).descriptors:
            os.close(descriptor)
        link.send(Detach(), _PROBE_S)
    except LinkError:
        return False
    finally:
        link.close()
    return True
