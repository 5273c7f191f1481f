"""What vLLM's own offloading needs to run on a CPU: its manager and its scheduler's half as they are, and a copier.

vLLM's copier wants a GPU. This one copies block by block, blocks that lie side by side at once, in the engine's own
thread: there is no device to copy beside it, and a request is loaded in the step that asks for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's for GPUs, with another copier."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The copier of this process."""
        assert self.blocks_per_chunk == 1
        return HostWorker(kv_caches, self.num_chunks)


class HostWorker(OffloadingWorker):  # type: ignore[misc]
    """Between an engine's cache and as much host memory as the manager knows of, one group of layers."""

    def __init__(self, caches: CanonicalKVCaches, blocks: int) -> None:
        self._cache = [one.tensor for one in caches.tensors]
        # Ones are written, so that no page of it is touched for the first time by a copy.
        self._host = [torch.ones(blocks, one.page_size_bytes, dtype=torch.int8) for one in caches.tensors]
        self._ended: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """To host memory."""
        return self._copy(job_id, (self._cache, src_spec), (self._host, dst_spec))

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """From host memory."""
        return self._copy(job_id, (self._host, src_spec), (self._cache, dst_spec))

    def get_finished(self) -> list[TransferResult]:
        """All there are: a copy has ended when it is submitted."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is on its way."""

    def _copy(self, job: int, source: tuple[list[Any], CPULoadStoreSpec], to: tuple[list[Any], Any]) -> bool:
        taken, given = source[1].block_ids, to[1].block_ids
        for first, last in runs(taken, given):
            for here, there in zip(source[0], to[0], strict=True):
                there[given[first] : given[last - 1] + 1].copy_(here[taken[first] : taken[last - 1] + 1])
        self._ended.append(TransferResult(job, success=True))
        return True


def runs(taken: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Where blocks lie side by side on both sides: places, the end behind the last."""
    breaks = np.flatnonzero((np.diff(taken) != 1) | (np.diff(given) != 1)) + 1
    places = [0, *breaks.tolist(), len(taken)]
    return [(first, last) for first, last in pairwise(places) if first < last]
