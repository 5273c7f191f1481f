"""What an engine imports: keys, match, load, prefetch and store. Attaches to the daemon over its Unix socket."""

from .client import Client
from .keys import Keys, Namespace
from .match import Handover, Match
from .prefetch import Prefetch
from .promise import Promise
from .store import Outcome, Part, Reservation, StoreResult

__all__ = [
    "Client",
    "Handover",
    "Keys",
    "Match",
    "Namespace",
    "Outcome",
    "Part",
    "Prefetch",
    "Promise",
    "Reservation",
    "StoreResult",
]
