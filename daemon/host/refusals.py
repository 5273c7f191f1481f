"""Says why a process at the control socket is refused, and what an administrator can do about it."""

from __future__ import annotations

from typing import Final

from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import Caller, Peer, Rights, rights_of
from pagetier.shm.user_namespace import STANDS_FOR_UNMAPPED, unmapped_ids

_MOST_GROUPS: Final = 8  # that a message names
_HOST_IDS: Final = 1 << 16  # container runtimes leave the numbers below to the host
_REMEDY: Final = 'run the daemon without one, or set access.authorize_by = "socket"'
_RANGE: Final = "; for a container with a user namespace, list the namespace's range (FIRST-LAST)"


def why_forbidden(peer: Peer | Caller, needs: Rights, access: AccessOptions) -> str:
    """Returns why a peer does not have the right that a request needs, and what grants it."""
    if needs is Rights.MANAGE:
        return f"user {peer.uid} may not change sizes or free slots: only root and the daemon's own user may"
    may = "only watch" if rights_of(peer, access) is Rights.WATCH else _denied(needs)
    if peer.uid == unmapped_ids().user:
        return f"user {peer.uid} may {may}: this number {STANDS_FOR_UNMAPPED}; {_REMEDY}"
    return f"user {peer.uid} may {may}: {_unlisted(peer, needs)}{_RANGE if peer.uid >= _HOST_IDS else ''}"


def _denied(needs: Rights) -> str:
    return "not watch" if needs is Rights.WATCH else "not attach"


def _unlisted(peer: Peer | Caller, needs: Rights) -> str:
    prefix = "access.watch_" if needs is Rights.WATCH else "access."
    names = sorted(peer.groups)
    groups = ", ".join(map(str, names[:_MOST_GROUPS])) + (", ..." if len(names) > _MOST_GROUPS else "")
    return f"{prefix}users does not list it, nor {prefix}groups one of its groups ({groups})"


def why_unseen(caller: Caller, host: Host) -> str:
    """Returns why this process cannot see the one that connected.

    Args:
        caller: The process.
        host: The host, whose /proc may hide processes.
    """
    if caller.pid <= 0:
        return (
            f"a process of user {caller.uid} lives in a PID namespace that cannot be seen from here: give the daemon"
            " the host's PID namespace, or use Linux 6.9 or later"
        )
    if hidden := host.hidepid():
        return (
            f"{caller} cannot be seen from here: /proc is mounted with hidepid={hidden}; mount it with gid=GROUP, a"
            " group of the daemon's user"
        )
    return f"{caller} cannot be seen from here, or has ended"
