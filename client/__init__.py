"""What an engine imports: keys, match, load and store. Attaches to the daemon over its Unix socket."""

from .client import Client
from .keys import Keys, Namespace
from .match import Handover, Match
from .requests import Promise
from .store import Outcome, Part, Reservation, StoreResult

__all__ = [
    "Client",
    "Handover",
    "Keys",
    "Match",
    "Namespace",
    "Outcome",
    "Part",
    "Promise",
    "Reservation",
    "StoreResult",
]
