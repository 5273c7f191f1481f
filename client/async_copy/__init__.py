"""Asynchronous copies between an engine's cache and the arena, see AsyncCopier."""

from pagetier.client.async_copy.copier import AsyncCopier, open_copier
from pagetier.client.async_copy.job import Counts
from pagetier.client.async_copy.load_job import LoadHandle
from pagetier.client.async_copy.store_job import StoreHandle

__all__ = ["AsyncCopier", "Counts", "LoadHandle", "StoreHandle", "open_copier"]
