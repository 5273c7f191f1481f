"""Pools of which every byte is known: a load must change the rows of its pages in all buffers, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch

from sglang_model import AnyPrompt, Place, Spec, share
from sglang_physical import Buffer, buffers_of, content
from sglang_pool_makers import make_draft, make_pool, model_layers
from sglang_pools import Pools


class PhysicalPools(Pools):
    """The pools of one process, and those of its draft models."""

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        if spec.draft and place.stage == spec.stages - 1:  # as in SGLang
            self.drafts = (make_draft(spec, self.slots, self.heads),)
        self._buffers = list(buffers_of(self.allocator.get_kvcache(), spec.page // spec.splits, place.marker))
        for draft in self.drafts:
            self._buffers += buffers_of(draft, spec.page, f"{place.marker}draft ")

    @property
    def model_layers(self) -> int:
        """The number of layers of the model."""
        return model_layers(self._spec)

    def clear(self) -> None:
        """Frees everything and fills it with other bytes."""
        super().clear()
        for buffer in self._buffers:
            buffer.raw.random_(0, 256)

    def write(self, number: AnyPrompt, slots: torch.Tensor) -> None:
        """Writes all rows of a prompt, as a forward pass does; a replica writes others."""
        number = self._written(number)
        for buffer in self._buffers:
            for at, page in enumerate(self._pages(buffer, slots)):
                buffer.rows[page] = self._content(number, buffer, at)

    def has(self, number: AnyPrompt, slots: torch.Tensor, ends: int) -> bool:
        """Returns whether all buffers have the rows of a prompt, of which the last token is number `ends`."""
        equal = True
        for buffer in self._buffers:
            own = slots[-self.windowed_slots :] if buffer.windowed else slots
            pages = self._pages(buffer, own)
            first = (ends - len(own)) // self._spec.page
            for at, page in enumerate(pages, first):
                equal &= torch.equal(buffer.rows[page], self._content(number, buffer, at))
            self._loaded.append((buffer.rows, pages))
        return equal

    def _make_pool(self) -> Any:
        splits, mamba = self._spec.splits, getattr(self.requests, "mamba_pool", None)
        own = msgspec.structs.replace(self._spec, page=self._spec.page // splits)
        return make_pool(own, self._place, self.slots // splits, self.heads, mamba)

    def _planes(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        return iter(())

    def _tensors(self) -> Iterable[torch.Tensor]:
        return (buffer.rows for buffer in self._buffers)

    def _pages(self, buffer: Buffer, slots: torch.Tensor) -> torch.Tensor:
        where = self.allocator.translate_loc_from_full_to_swa(slots) if buffer.windowed else slots
        pages: torch.Tensor = where[:: self._spec.page] // self._spec.page
        return pages

    def _content(self, number: AnyPrompt, buffer: Buffer, at: int) -> torch.Tensor:
        return share(content(number, buffer, at, self._spec.heads), self._rank, self._spec.ranks)
