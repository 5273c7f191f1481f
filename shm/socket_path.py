"""Where the control socket is when nobody says: one rule for the daemon and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PosixPath

SOCKET_NAME = "pagetier.sock"


class DefaultSocket(PosixPath):
    """The path of a socket that nobody named: whoever connects to it checks that no other user placed it there."""


def default_socket(environ: Mapping[str, str] | None = None, run: Path = Path("/run")) -> Path:
    """The control socket's path: the first of these that applies. Never raises; makes nothing.

    1. ``$PAGETIER_SOCKET``, where it is set and not empty.
    2. ``/run/pagetier/pagetier.sock``, where that folder can be entered by this process, or be made by it.
    3. ``$XDG_RUNTIME_DIR/pagetier/pagetier.sock``, where that variable is an absolute path.
    4. ``/tmp/pagetier-UID/pagetier.sock``.

    The answer changes when a system daemon starts for the first time, so a client asks at each attempt.
    The first is a path that the user named. The others are a DefaultSocket: /tmp, for one, is open to all users.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("PAGETIER_SOCKET", "")
    return Path(named) if named else DefaultSocket(_folder(environ, run) / SOCKET_NAME)


def _folder(environ: Mapping[str, str], run: Path) -> Path:
    system = run / "pagetier"
    if _usable(system):
        return system
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "pagetier"
    return Path(f"/tmp/pagetier-{os.getuid()}")


def _usable(folder: Path) -> bool:
    if folder.is_dir():
        return os.access(folder, os.X_OK)
    return os.access(folder.parent, os.W_OK | os.X_OK)
