"""Groups of KV state: layers that behave alike, and one match over all groups of a model."""

from .base import Group, grain_of
from .full import FullAttention
from .match import GroupKeys, GroupMatch, Lookup
from .recurrent import Recurrent
from .window import SlidingWindow

__all__ = [
    "FullAttention",
    "Group",
    "GroupKeys",
    "GroupMatch",
    "Lookup",
    "Recurrent",
    "SlidingWindow",
    "grain_of",
]
