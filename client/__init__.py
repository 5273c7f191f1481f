"""The Python API for engines: keys, layer groups, match, load, prefetch and store, over a Unix socket to the daemon."""

from pagetier.client.async_copy import AsyncCopier, LoadHandle, StoreHandle
from pagetier.client.client import Client
from pagetier.client.futures import PendingReservation, Prefetch
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Match, MatchHandle
from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.reservation import Outcome, Reservation, StoreResult

__all__ = [
    "AsyncCopier",
    "Blocks",
    "Client",
    "FullAttention",
    "Group",
    "GroupKeys",
    "GroupMatch",
    "Keys",
    "LoadHandle",
    "Lookup",
    "Match",
    "MatchHandle",
    "Namespace",
    "Outcome",
    "Part",
    "PendingReservation",
    "Prefetch",
    "Recurrent",
    "Reservation",
    "SlidingWindow",
    "StoreHandle",
    "StoreResult",
]
