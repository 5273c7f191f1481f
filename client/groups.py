"""Groups of KV state: layers that behave alike, and one match over all groups of a model."""

from pagetier.client.group_base import Group, grain_of
from pagetier.client.group_full import FullAttention
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.group_recurrent import Recurrent
from pagetier.client.group_window import SlidingWindow

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
