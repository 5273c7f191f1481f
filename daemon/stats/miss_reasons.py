"""Why tokens were not found: as pages that were absent, or computed although a tier had them."""

from __future__ import annotations

from typing import Final

from pagetier.daemon.stats.size_advice import AbsentTokens
from pagetier.daemon.stats.snapshot import Snapshot

_SLOWER: Final = "computed because loading is slower"
_TINY: Final = 0.005  # shares below it are left out


def miss_reasons(absent: AbsentTokens, snapshot: Snapshot) -> list[tuple[str, float]]:
    """Returns the reasons why tokens were not found with their shares, the commonest first. Empty if none was missed.

    Args:
        absent: The tokens of pages that were not found, of all lookups or of the recent ones.
        snapshot: The state of the cache. Tokens that were computed because loading is slower have the share of all
            lookups so far, since they are not counted by time.
    """
    shares = absent.shares()
    slower = _slower_share(snapshot) if shares else float(snapshot.lookups.slower_tokens > 0)
    all_shares = {_SLOWER: slower} | {about: share * (1 - slower) for about, share in shares.items()}
    return sorted(((about, share) for about, share in all_shares.items() if share >= _TINY), key=lambda one: -one[1])


def _slower_share(snapshot: Snapshot) -> float:
    slower = snapshot.lookups.slower_tokens
    return slower / (slower + snapshot.absent.tokens) if slower else 0.0
