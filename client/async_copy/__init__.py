"""Asynchronous copies between an engine's cache and the arena: see Copier."""

from .copier import Copier
from .counts import Counts
from .loads import Load
from .opening import open_copier
from .stores import Store

__all__ = ["Copier", "Counts", "Load", "Store", "open_copier"]
