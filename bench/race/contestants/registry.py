"""The contestants that this environment can run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

from race.contestants.cache import Cache, Sizes
from race.contestants.file_tier import FileTier
from race.contestants.lmcache_server import LmcacheServer
from race.contestants.native_offloading import NativeOffloading
from race.contestants.pagetier_cache import HashedEngine, PagetierCache

PAGETIER, LMCACHE, NATIVE, FILES = "pagetier", "LMCache", "vLLM native", "files"
HASHED = "pagetier with block hashes"
PRIVATE_MEMORY = {NATIVE}
"""Systems whose engines share no memory: each engine finds in memory only what it has stored itself."""
TMPFS = Path("/dev/shm")

Make = Callable[[Sizes, Path], AbstractContextManager[Cache]]
"""Makes a contestant; the path is the folder for what it keeps on disk."""


def _files(sizes: Sizes, folder: Path) -> AbstractContextManager[Cache]:
    return FileTier(sizes, folder if sizes.disk else TMPFS, FILES)


def _hashed(sizes: Sizes, folder: Path) -> AbstractContextManager[Cache]:
    return PagetierCache(sizes, folder, engine=HashedEngine)


MAKERS: dict[str, Make] = {
    HASHED: _hashed,
    PAGETIER: PagetierCache,
    LMCACHE: LmcacheServer,
    NATIVE: NativeOffloading,
    FILES: _files,
}

_NEEDS = {LMCACHE: "lmcache", NATIVE: "vllm"}


def reason_absent(name: str) -> str:
    """Returns why a contestant cannot run here; "" if it can."""
    needed = _NEEDS.get(name, "")
    return f"the package {needed} is not installed in this environment" if needed and not find_spec(needed) else ""
