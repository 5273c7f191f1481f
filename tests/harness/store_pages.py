"""Pages for tests of tiers, with content that follows from key and size."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

from numbered_pages import key_of
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Catalogue, Incoming, Outgoing, ReadOutcome, ReadResult, Tier
from pagetier.tiers.capacity import Compress, StoreName
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.worker.open_store import store_class

FRAME = 4096
CAP = 8 << 20
# A file system where syncs are cheap, for tests that sync often.
MEMORY = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)
SPACE = Space(b"s" * KEY_BYTES, "space", 16)
OTHER = Space(b"o" * KEY_BYTES, "other", 64, 1, 512)


class Default:
    """The store of small_tier(), which the fixture each_store changes."""

    store: StoreName = "lmdb"
    compress: Compress = "off"


def small_tier(folder: Path, cap: int = CAP, environments: int = 2, **more: float) -> DiskStore:
    """Returns a tier with small frames."""
    return store_class(Default.store, Default.compress)(folder, cap, FRAME, environments, **more)


def aligned(nbytes: int, content: bytes = b"") -> memoryview:
    """Returns memory that begins at a page of memory, as an arena's frames do."""
    memory = memoryview(mmap.mmap(-1, max(1, nbytes)))
    memory[: len(content)] = content
    return memory


def content_of(key: bytes, size: int, version: int = 0) -> bytes:
    return hashlib.shake_128(key + b"%d" % version).digest(size)


def outgoing(
    number: int, size: int = 3 * FRAME - 7, *, stamp: int = 0, space: Space = SPACE, version: int = 0
) -> Outgoing:
    key = key_of(number)
    whole = -(-size // FRAME) * FRAME
    padded = aligned(whole, content_of(key, size, version).ljust(whole, b"\xee"))
    frames = [padded[at : at + FRAME] for at in range(0, whole, FRAME)]
    return Outgoing(key, space, size, stamp, frames)


def outgoings(numbers: Iterable[int], size: int = 3 * FRAME - 7) -> list[Outgoing]:
    return [outgoing(number, size, stamp=number) for number in numbers]


def read_bytes(tier: Tier, key: bytes, size: int) -> tuple[ReadResult, bytes]:
    whole = aligned(-(-size // FRAME) * FRAME)
    frames = [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]
    result = tier.read(Incoming(key, size, frames))
    return result, b"".join(frames)[:size]


def outcome_of(tier: Tier, page: Outgoing, version: int = 0) -> ReadOutcome:
    """Returns the outcome of a read. Asserts that the content is right if the outcome is EXACT."""
    result, content = read_bytes(tier, page.key, page.size)
    if result.outcome is ReadOutcome.EXACT:
        assert content == content_of(page.key, page.size, version), "wrong content was reported as exact"
    return result.outcome


def outcomes(tier: Tier, pages: Sequence[Outgoing]) -> set[ReadOutcome]:
    return {outcome_of(tier, page) for page in pages}


def keys_in(tier: Catalogue) -> set[bytes]:
    found = [page.key for held in tier.contents() for page in held]
    assert len(found) == len(set(found))
    return set(found)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def filled_tier(folder: Path) -> list[bytes]:
    """Returns the keys of a full tier, from the coldest to the hottest."""
    tier = small_tier(folder)
    pages = outgoings(range(tier.capacity // 3 - 4))
    assert all(tier.write([], pages).stored)
    tier.close()
    return [page.key for page in pages]
