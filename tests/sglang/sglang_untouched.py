"""The bytes of memory before a load, which may change the rows of its pages and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import torch

Rows = tuple[torch.Tensor, torch.Tensor]
"""A tensor and the indices of some of its rows, by its first dimension."""


class Untouched:
    """All bytes of the memory of some tensors, at the time of its construction.

    Args:
        tensors: The tensors. Memory beside them that belongs to the same allocations is compared, too.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        allocations = {one.untyped_storage().data_ptr(): _bytes_of(one) for one in tensors}
        self._before = {address: (now, now.clone()) for address, now in allocations.items()}

    def beside(self, rows: Iterable[Rows]) -> bool:
        """Returns whether all bytes are as they were, but those of some rows."""
        after = {address: now.clone() for address, (now, _) in self._before.items()}
        for tensor, indices in rows:
            address = tensor.untyped_storage().data_ptr()
            _over(tensor, after[address])[indices] = _over(tensor, self._before[address][1])[indices]
        return all(torch.equal(after[address], before) for address, (_, before) in self._before.items())


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _over(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Returns a tensor like another one, over a copy of its memory."""
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(memory.untyped_storage(), *place)
