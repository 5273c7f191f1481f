"""The parts below a registered cache, for authors of engine adapters: blocks, copiers, reservations and fleet lookups.

Everything else that an engine needs is in `pagetier.client`.
"""

from pagetier.client.async_copy import AsyncCopier, open_copier
from pagetier.client.daemon_requests import Prefetch
from pagetier.client.fleet_lookup import LocatedHit, Location
from pagetier.client.group_match import GroupKeys, Lookup
from pagetier.client.groups import Group
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.match import MatchHandle
from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.pending_reservation import PendingReservation, reserve_async
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.reservation import Reservation
from pagetier.client.session_lookups import adopt, count_lookup, find, sample_lookup
from pagetier.kernels.layout.named_layouts import LAYOUT_NAMES
from pagetier.shm.protocol import Prompt

__all__ = [
    "LAYOUT_NAMES",
    "AsyncCopier",
    "Blocks",
    "Group",
    "GroupKeys",
    "LoadOrCompute",
    "LocatedHit",
    "Location",
    "Lookup",
    "MatchHandle",
    "Part",
    "PendingReservation",
    "Prefetch",
    "Prompt",
    "PromptReader",
    "Reservation",
    "adopt",
    "count_lookup",
    "find",
    "open_copier",
    "reserve_async",
    "sample_lookup",
]
