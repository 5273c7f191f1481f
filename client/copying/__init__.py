"""Asynchronous copies between an engine's cache and the arena: see Copier."""

from .copier import Copier
from .counts import Counts
from .loads import Load
from .stores import Store

__all__ = ["Copier", "Counts", "Load", "Store"]
