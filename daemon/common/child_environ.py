"""The environment of the daemon's child processes."""

from __future__ import annotations

import os

_OWN_PREFIX = "PAGETIER_"
_CREDENTIALS_PREFIX = "AWS_"


def child_environ() -> dict[str, str]:
    """Returns the daemon's environment without its own settings, for the fleet's worker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN_PREFIX)}


def environ_without_credentials() -> dict[str, str]:
    """Returns the same without the credentials of the fleet's store, for all other children."""
    return {name: value for name, value in child_environ().items() if not name.startswith(_CREDENTIALS_PREFIX)}
