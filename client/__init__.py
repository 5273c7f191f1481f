"""What an engine imports: keys, groups, match, load, prefetch, store. Attaches to the daemon over its Unix socket."""

from pagetier.client.async_copy import Copier, Load, Store
from pagetier.client.client import Client
from pagetier.client.futures import Prefetch, Promise
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Handover, Match
from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.reservation import Outcome, Reservation, StoreResult

__all__ = [
    "Blocks",
    "Client",
    "Copier",
    "FullAttention",
    "Group",
    "GroupKeys",
    "GroupMatch",
    "Handover",
    "Keys",
    "Load",
    "Lookup",
    "Match",
    "Namespace",
    "Outcome",
    "Part",
    "Prefetch",
    "Promise",
    "Recurrent",
    "Reservation",
    "SlidingWindow",
    "Store",
    "StoreResult",
]
