"""Asynchronous copies between an engine's cache and the arena, see AsyncCopier."""

from pagetier.client.async_copy.copier import AsyncCopier, open_copier
from pagetier.client.async_copy.handles import LoadHandle, StoreHandle
from pagetier.client.async_copy.job import Counts

__all__ = ["AsyncCopier", "Counts", "LoadHandle", "StoreHandle", "open_copier"]
