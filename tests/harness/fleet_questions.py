"""Questions to the fleet about the pages of one prompt."""

from __future__ import annotations

from pagetier.client import Client, FullAttention, Keys
from pagetier.client.adapters import GroupKeys, LocatedHit, Location


def located(client: Client, keys: Keys) -> Location:
    """Asks which pages the fleet has after those of this host."""
    with client.find_groups([GroupKeys(FullAttention(keys.namespace.page_tokens), keys)]) as match:
        return client.locate(match)


def hit_in_fleet(client: Client, keys: Keys, timeout: float) -> LocatedHit | None:
    """Returns the longest hit with pages of the fleet, waiting for the answer."""
    location = located(client, keys)
    location.wait(timeout)
    return location.longest_hit()
