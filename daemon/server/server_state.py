"""The state that all connections of the control socket share."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.peer_credentials import Caller
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.shm.log_format import event
from pagetier.shm.protocol import POPULATING

log = logging.getLogger(__name__)

GREETING_S: Final = 5.0


class ServerState(msgspec.Struct, frozen=True):
    """The state that all connections of a server share. A peer must send its greeting within `patience` seconds.

    They also share the memory for received bytes, since each takes them out at once. Fresh memory for each request
    would be mapped and unmapped by the kernel. Reasons in `logged` are not logged again.
    """

    service: Service
    access: AccessOptions
    limits: ConnectionLimits
    throttle: LogThrottle
    buffer: memoryview
    patience: float = GREETING_S
    logged: set[str] = msgspec.field(default_factory=set)

    def log_end(self, caller: Caller, why: str) -> None:
        """Logs why the daemon closes a connection, once that engines wait: they try again until the arena is ready."""
        facts = event("peer_refused", why=why)
        if why != POPULATING:
            self.throttle.log(logging.WARNING, caller.uid, "connection of %s closed: %s", caller, why, extra=facts)
        elif why not in self.logged:
            self.logged.add(why)
            log.info("connection of %s closed: %s; others until then are not logged", caller, why, extra=facts)
