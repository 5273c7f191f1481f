"""Makes vLLM's native offloading run on a CPU: its own manager and scheduler half, with another copier.

vLLM's copier needs a GPU. This one copies block by block, contiguous blocks at once, in the engine's own thread: there
is no device to copy in parallel, and a request is loaded in the step that asks for it.
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
    """vLLM's specification for GPUs, with another copier."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Returns the copier of this process."""
        assert self.blocks_per_chunk == 1
        return HostWorker(kv_caches, self.num_chunks)


class HostWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies between an engine's cache and as much host memory as the manager has, for one group of layers."""

    def __init__(self, caches: CanonicalKVCaches, blocks: int) -> None:
        self._cache = [one.tensor for one in caches.tensors]
        # Fill the memory with ones, so that no copy touches a page for the first time.
        self._host = [torch.ones(blocks, one.page_size_bytes, dtype=torch.int8) for one in caches.tensors]
        self._ended: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Copies to host memory."""
        return self._copy(job_id, (self._cache, src_spec), (self._host, dst_spec))

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copies from host memory."""
        return self._copy(job_id, (self._host, src_spec), (self._cache, dst_spec))

    def get_finished(self) -> list[TransferResult]:
        """Returns all copies: each ended when it was submitted."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Returns at once, since no copy is in progress."""

    def _copy(self, job: int, source: tuple[list[Any], CPULoadStoreSpec], to: tuple[list[Any], Any]) -> bool:
        taken, given = source[1].block_ids, to[1].block_ids
        for first, last in runs(taken, given):
            for here, there in zip(source[0], to[0], strict=True):
                there[given[first] : given[last - 1] + 1].copy_(here[taken[first] : taken[last - 1] + 1])
        self._ended.append(TransferResult(job, success=True))
        return True


def runs(taken: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Returns the runs of blocks that are contiguous on both sides, each as its first index and its end."""
    breaks = np.flatnonzero((np.diff(taken) != 1) | (np.diff(given) != 1)) + 1
    places = [0, *breaks.tolist(), len(taken)]
    return [(first, last) for first, last in pairwise(places) if first < last]
