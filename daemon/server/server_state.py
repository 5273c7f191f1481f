"""The state that all connections of the control socket share."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.limits import ConnectionLimits

GREETING_S: Final = 5.0


class ServerState(msgspec.Struct, frozen=True):
    """The state that all connections of a server share. A peer must send its greeting within `patience` seconds.

    They also share the memory for received bytes, since each takes them out at once. Fresh memory for each request
    would be mapped and unmapped by the kernel.
    """

    service: Service
    access: AccessOptions
    limits: ConnectionLimits
    throttle: LogThrottle
    buffer: memoryview
    patience: float = GREETING_S
