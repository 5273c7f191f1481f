"""The Python API for engines: register a KV cache, and match, load and store prompts. Client is the place to start."""

from pagetier.client.async_copy import AsyncCopier, LoadHandle, StoreHandle
from pagetier.client.client import Client
from pagetier.client.fleet_lookup import Location
from pagetier.client.group_fleet_lookup import GroupLocation, LocatedHit
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import ChunkedAttention, FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.hints import NO_HINT, Hint
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Match, MatchHandle
from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.pending_reservation import PendingReservation
from pagetier.client.prefetch import Prefetch
from pagetier.client.registered_cache import IncompleteLoadError, RegisteredCache
from pagetier.client.registered_groups import NO_BLOCK, RegisteredGroups
from pagetier.client.registration import CacheGroup
from pagetier.client.reservation import Reservation
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.config.settings_file import SettingsError
from pagetier.kernels.device import DeviceError
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.kernels.layout.named_layouts import LAYOUT_NAMES
from pagetier.shm.errors import PagetierError
from pagetier.shm.protocol import Prompt

__all__ = [
    "LAYOUT_NAMES",
    "NO_BLOCK",
    "NO_HINT",
    "AsyncCopier",
    "Blocks",
    "CacheGroup",
    "ChunkedAttention",
    "Client",
    "DeviceError",
    "FullAttention",
    "Group",
    "GroupKeys",
    "GroupLocation",
    "GroupMatch",
    "Hint",
    "IncompleteLoadError",
    "Keys",
    "LayoutError",
    "LoadHandle",
    "LocatedHit",
    "Location",
    "Lookup",
    "Match",
    "MatchHandle",
    "Namespace",
    "Outcome",
    "PagetierError",
    "Part",
    "PendingReservation",
    "Prefetch",
    "Prompt",
    "Recurrent",
    "RegisteredCache",
    "RegisteredGroups",
    "Reservation",
    "SettingsError",
    "SlidingWindow",
    "StoreHandle",
    "StoreResult",
]
