"""The layer groups of a model on this rank: SGLang's transfers as keys and blocks of pagetier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.engines.sglang.pools.device_pools import FULL
from pagetier.client.hashing import mixed_into
from pagetier.client.keys import Keys
from pagetier.client.registered_group import RegisteredGroup
from pagetier.shm.protocol import Prompt

# SGLang passes the pages after those on the GPU, and does not say which page is before them.
_TAIL: Final = (Prompt(0, b"", -1),)


class EngineGroup(msgspec.Struct, frozen=True, eq=False):
    """One layer group on this rank.

    Attributes:
        name: SGLang's name of the pool.
        cache: The cache, in blocks of one page.
        layers: See DevicePool.
        page_slots: See DevicePool.
    """

    name: str
    cache: RegisteredGroup
    layers: Mapping[int, int]
    page_slots: int

    def keys(self, hashes: bytes) -> Keys:
        """Returns the keys of SGLang's hashes, 32 bytes each. Only pages of full attention depend on those before."""
        namespace = self.cache.namespace
        return Keys(namespace, mixed_into(hashes, namespace.digest), _TAIL if self.name == FULL else ())

    def blocks(self, indices: Any) -> npt.NDArray[np.int64]:
        """Returns the block of each page.

        Args:
            indices: The slots of the pages on the device or the host, as SGLang's allocator returned them.

        Raises:
            ValueError: The slots of a page are not consecutive, or a page does not begin at a multiple of its slots.
        """
        slots: npt.NDArray[np.int64] = indices.cpu().numpy().astype(np.int64).reshape(-1, self.page_slots)
        first = slots[:, :1]
        if (slots - first != np.arange(self.page_slots)).any() or (first % self.page_slots).any():
            raise ValueError(f"the slots of a page of pool {self.name} are not consecutive")
        return first[:, 0] // self.page_slots


def hashes_of(keys: Sequence[str]) -> bytes:
    """Returns SGLang's hashes, 64 hex digits each, as bytes. Raises ValueError for other texts."""
    return bytes.fromhex("".join(keys))


def by_pool(transfers: Sequence[Any]) -> dict[str, Any]:
    """Returns SGLang's transfers by the name of their pool."""
    return {transfer.name.value: transfer for transfer in transfers}
