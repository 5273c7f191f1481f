"""Asynchronous copies between an engine's cache and the arena: see Copier."""

from pagetier.client.async_copy.copier import Copier
from pagetier.client.async_copy.counters import Counts
from pagetier.client.async_copy.handles import Store
from pagetier.client.async_copy.load_handle import Load
from pagetier.client.async_copy.opening import open_copier

__all__ = ["Copier", "Counts", "Load", "Store", "open_copier"]
