"""Looks prompts up as an engine does, and reads what `pagetier advise` knows of it."""

from __future__ import annotations

import json
from typing import Any

from eventually import eventually
from pagetier.client import Client, Keys
from running_daemon import RunningDaemon

PAGE = 60_000


def advice(daemon: RunningDaemon) -> dict[str, Any] | None:
    """Returns the output of `pagetier advise --json`."""
    result = daemon.pagetier("advise", "--json")
    assert result.exit_code == 0, result.output
    values: dict[str, Any] | None = json.loads(result.stdout)
    return values


def advice_after(daemon: RunningDaemon, lookups: int) -> dict[str, Any]:
    """Returns the advice as soon as the daemon has counted so many lookups."""

    def counted() -> dict[str, Any] | None:
        values = advice(daemon)
        return values if values is not None and values["lookups"] >= lookups else None

    values = eventually(counted)
    assert values is not None, f"{lookups} lookups were not counted"
    assert values["lookups"] == lookups
    return values


def serve(client: Client, keys: Keys) -> int:
    """Looks a prompt up and stores what is missing. Returns the pages that were found."""
    with client.match(keys) as match:
        found = len(match)
    if found < len(keys):
        done = client.store(keys[found:], [bytes(PAGE)] * (len(keys) - found))
        assert done.stored + done.left_out == len(keys) - found
    return found
