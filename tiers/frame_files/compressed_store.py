"""The files store with compressed pages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from pagetier.tiers.base import Outgoing, TierState, Written
from pagetier.tiers.capacity import slot_bytes_of
from pagetier.tiers.disk import reader
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import frames_of
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.disk.store import PROOF_S, DiskStore
from pagetier.tiers.frame_files.compressed_environment import CompressedEnvironment, why_uncompressed
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from pagetier.tiers.frame_files.resize import FilesResize

log = logging.getLogger("pagetier.tier")


class CompressedFilesStore(DiskStore):
    """A store of compressed pages in files. Its `frame_bytes` are those of the arena, its capacity is in slots."""

    KIND: ClassVar[type[Environment]] = CompressedEnvironment
    RESIZE: ClassVar[type[EnvironmentResize[FilesEnvironment]]] = FilesResize

    def __init__(
        self, folder: Path, cap_bytes: int, frame_bytes: int, environments: int = 4, *, proof_seconds: float = PROOF_S
    ) -> None:
        self._frame_bytes, self._slot_bytes = frame_bytes, slot_bytes_of(frame_bytes)
        super().__init__(folder, cap_bytes, self._slot_bytes, environments, proof_seconds=proof_seconds)
        if why := why_uncompressed():
            log.warning("%s: %s", folder, why)

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Says of each page how many slots it takes, too."""
        written = super().write(drops, pages)
        return msgspec.structs.replace(written, slots=self._slots_of(pages))

    def _slots_of(self, pages: Sequence[Outgoing]) -> tuple[int, ...]:
        """Returns the slots of each page, 0 if it is not there any more."""
        keys = [page.key for page in pages]
        each = [reader.headers(environment, keys) for environment in self._environments]
        there = [next(filter(None, headers), reader.NONSENSE) for headers in zip(*each, strict=True)]
        return tuple(frames_of(header.stored_bytes, self._slot_bytes) for header in there)

    def state(self) -> TierState:
        """Returns the state, with room in frames as of any other store."""
        state, per_frame = super().state(), self._frame_bytes // self._slot_bytes
        return msgspec.structs.replace(
            state,
            used_frames=-(-state.used_frames // per_frame),
            capacity=state.capacity // per_frame,
            slot_bytes=self._slot_bytes,
        )
