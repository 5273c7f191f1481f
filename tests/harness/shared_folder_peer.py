"""A host of a fleet in a folder, for tests that run it as another user."""

from __future__ import annotations

from pathlib import Path

import pagetier.tiers.fleet.folder_object_store  # noqa: F401  another user may not be able to import it
from fleet_pages import opened_fleet
from pagetier.tiers.base import ReadOutcome
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import outgoings


def store_and_read(folder: Path, stores: str, reads: str) -> str:
    """Stores and reads pages by their numbers, one digit each, and returns the reasons of failures and the results."""
    with opened_fleet(FleetOptions(url=f"file://{folder}", buffers=1 << 20, timeout_s=20)) as opened:
        written = opened.fleet.write([], outgoings(map(int, stores)))
        exact = [opened.outcome(page) is ReadOutcome.EXACT for page in outgoings(map(int, reads))]
    return "\n".join([*filter(None, written.reasons), f"stored {sum(written.stored)}, exact {sum(exact)}"])
