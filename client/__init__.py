"""The Python API for engines: register a KV cache, and match, load and store prompts. Client is the place to start."""

from pagetier.client.async_copy import LoadHandle, StoreHandle
from pagetier.client.client import Client
from pagetier.client.group_match import GroupMatch
from pagetier.client.groups import ChunkedAttention, FullAttention, Recurrent, SlidingWindow
from pagetier.client.hints import NO_HINT, Hint
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Match
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registered_group import IncompleteLoadError
from pagetier.client.registered_groups import NO_BLOCK, RegisteredGroups
from pagetier.client.registration import CacheGroup
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.config.settings_file import SettingsError
from pagetier.kernels.device import DeviceError
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.shm.errors import PagetierError

__all__ = [
    "NO_BLOCK",
    "NO_HINT",
    "CacheGroup",
    "ChunkedAttention",
    "Client",
    "DeviceError",
    "FullAttention",
    "GroupMatch",
    "Hint",
    "IncompleteLoadError",
    "Keys",
    "LayoutError",
    "LoadHandle",
    "Match",
    "Namespace",
    "Outcome",
    "PagetierError",
    "Recurrent",
    "RegisteredCache",
    "RegisteredGroups",
    "SettingsError",
    "SlidingWindow",
    "StoreHandle",
    "StoreResult",
]
