"""What a user may say in `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Raises ValueError for what is out of bounds.

    socket: of the daemon; empty: where it usually is. disk_deadline: seconds that a request may wait for pages on disk
    before it is computed instead; 0: it never does. salt: engines with different ones share nothing. name: what
    administrators see of this engine; empty: the program's.
    """

    socket: str = ""
    disk_deadline: float = 2.0
    salt: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.disk_deadline <= 3600:
            raise ValueError(f"disk_deadline = {self.disk_deadline}: seconds from 0 to 3600")


def read_settings(given: Mapping[str, Any]) -> ConnectorSettings:
    """Raises ValueError for an unknown key or a value of another kind; the message names it."""
    try:
        return msgspec.convert(dict(given), ConnectorSettings)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"kv_connector_extra_config: {error}") from error
