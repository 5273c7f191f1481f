"""Asynchronous copies between an engine's cache and the arena: see Copier."""

from pagetier.client.async_copy.copier import Copier, open_copier
from pagetier.client.async_copy.handles import Load, Store
from pagetier.client.async_copy.job import Counts

__all__ = ["Copier", "Counts", "Load", "Store", "open_copier"]
