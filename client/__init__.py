"""What an engine imports: keys, groups, match, load, prefetch, store. Attaches to the daemon over its Unix socket."""

from .blocks import Blocks
from .client import Client
from .copying import Copier, Load, Store
from .groups import FullAttention, Group, GroupKeys, GroupMatch, Lookup, Recurrent, SlidingWindow
from .keys import Keys, Namespace
from .match import Handover, Match
from .part import Part
from .prefetch import Prefetch
from .promise import Promise
from .store import Outcome, Reservation, StoreResult

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
