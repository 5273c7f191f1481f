"""The default path of the control socket: one rule for the daemon and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path, PosixPath
from typing import Final

SOCKET_NAME = "pagetier.sock"
_VARIABLE: Final = "PAGETIER_SOCKET"
_BEGINNING: Final = "PAGETIER_SOC"  # of no other variable
_ALIKE: Final = 0.93  # one letter more, fewer, or another, or two exchanged


class DefaultSocket(PosixPath):
    """A socket path that no user configured.

    A client that connects to it checks that no other user placed the socket.
    """


def default_socket(environ: Mapping[str, str] | None = None, run: Path = Path("/run")) -> Path:
    """Returns the control socket's path: the first of these that applies. Never raises and creates nothing.

    1. ``$PAGETIER_SOCKET``, if it is set and not empty.
    2. ``/run/pagetier/pagetier.sock``, if this process can create it, or if it exists in a folder that this process can
       enter. So a folder that another user's daemon has left decides nothing.
    3. ``$XDG_RUNTIME_DIR/pagetier/pagetier.sock``, if that variable is an absolute path.
    4. ``/tmp/pagetier-UID/pagetier.sock``.

    The result changes when a system daemon starts for the first time, so a client calls this for each attempt. The
    first path was configured by the user. The others are returned as DefaultSocket, because /tmp, for example, is
    writable for all users.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(_VARIABLE, "")
    return Path(named) if named else DefaultSocket(_folder(environ, run) / SOCKET_NAME)


def misspelt_variable(environ: Mapping[str, str] | None = None) -> str:
    """Returns the variable that may be meant to be PAGETIER_SOCKET, which is not set; "" if there is none."""
    names = (os.environ if environ is None else environ).keys() - {_VARIABLE}
    return next((name for name in sorted(names) if name.upper().startswith(_BEGINNING) or _is_alike(name)), "")


def _is_alike(name: str) -> bool:
    if abs(len(name) - len(_VARIABLE)) > 1:
        return False
    return SequenceMatcher(None, _VARIABLE, name).ratio() > _ALIKE


def closed_folder(path: Path) -> Path | None:
    """Returns the first folder above a path that this user may not enter; None if there is none."""
    folders = (folder for folder in reversed(path.parents) if os.path.isdir(folder))  # noqa: PTH112  never raises
    return next((folder for folder in folders if not os.access(folder, os.X_OK)), None)


def open_remedy(path: Path) -> str:
    """Returns what lets this user open the daemon's socket at a path, which the system has denied."""
    if closed := closed_folder(path):
        return f"this user may not enter {closed}: run this as root or as the daemon's own user"
    return (
        "this user may not open the daemon's socket; to allow it, list the user in access.users or its group in"
        ' access.groups, and set access.socket_mode = "0666"'
    )


def _folder(environ: Mapping[str, str], run: Path) -> Path:
    system = run / "pagetier"
    if _usable(system):
        return system
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "pagetier"
    return Path(f"/tmp/pagetier-{os.getuid()}")


def _usable(folder: Path) -> bool:
    if not folder.is_dir():
        return os.access(folder.parent, os.W_OK | os.X_OK)
    if os.access(folder, os.W_OK | os.X_OK):
        return True
    return os.access(folder, os.X_OK) and (folder / SOCKET_NAME).exists()
