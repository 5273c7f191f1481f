"""An environment of the files store with compressed pages, in slots that are smaller than frames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

from pagetier.shm._core import compresses_fast
from pagetier.tiers.base import Incoming, Outgoing
from pagetier.tiers.disk.file_format import COMPRESSED_FORMAT, Header, frames_of
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from pagetier.tiers.frame_files.slot_bytes import CodeMemory, SlotBytes, compressed, cut, expanded


def why_uncompressed() -> str:
    """Returns why pages are stored as they are on this host, or ""."""
    return "" if compresses_fast() else "pages are not compressed: this processor has no AVX2"


class CompressedEnvironment(FilesEnvironment):
    """An environment whose slots are smaller than the frames of the arena; `shape.frame_bytes` is the size of a slot.

    A page is compressed where that saves a slot. Without fast instructions none is, and those that are can be read.
    """

    FORMAT: ClassVar[int] = COMPRESSED_FORMAT
    READABLE: ClassVar[frozenset[int]] = frozenset((COMPRESSED_FORMAT,))

    def _open_frames(self, undo: contextlib.ExitStack) -> None:
        super()._open_frames(undo)
        # Apart: what a transaction needs would otherwise become the size of every buffer.
        self._written, self._read = CodeMemory(), CodeMemory()

    @property
    def note(self) -> str:
        """What an administrator should know of the files, "" if nothing."""
        return "; ".join(filter(None, (super().note, why_uncompressed())))

    @contextlib.contextmanager
    def packed(self, pages: Sequence[Outgoing], readers: ReaderCount) -> Iterator[list[SlotBytes]]:
        """Compresses pages, as long as the block runs. Reads go first."""
        slot, patience = self.shape.frame_bytes, Patience(readers)
        with self._written.lent(sum(frames_of(page.size, slot) for page in pages) * slot) as memory:
            packed, at = list[SlotBytes](), 0
            for page in pages:
                patience.give_way()
                packed.append(self._packed(page, memory[at:]))
                at += len(packed[-1].slots) * slot if packed[-1].coded else 0
            yield packed

    def _packed(self, page: Outgoing, out: memoryview) -> SlotBytes:
        slot = self.shape.frame_bytes
        found = compressed(page.size, page.frames, slot, out) if compresses_fast() else None
        return found or SlotBytes(cut(page.frames, frames_of(page.size, slot), slot))

    def fetch(self, header: Header, page: Incoming) -> str:
        """Reads a page into its frames. Returns why that is impossible, or "". Raises OSError."""
        slot, count = self.shape.frame_bytes, frames_of(header.stored_bytes, self.shape.frame_bytes)
        if not header.coded:
            return self.fetch_slots(header, cut(page.frames, count, slot))
        with self._read.lent(count * slot) as memory:
            wrong = self.fetch_slots(header, cut([memory], count, slot))
            whole = wrong or expanded(memory[: header.coded], page.size, page.frames)
        return wrong or ("" if whole else "the compressed page is damaged")
