"""Orders and page shapes in the wrappings that vLLM sends between its processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from pagetier.client.engines.vllm.messages import Orders
from pagetier.client.engines.vllm.namespace import PageShape


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Scheduler to workers, each step. idle: whether nothing is computed in it."""

    orders: Orders = field(default_factory=Orders)
    idle: bool = False


@dataclass
class StoredMetadata(KVConnectorWorkerMetadata):
    """Workers to scheduler: which pages of numbered orders are there, see WorkerHalf.told."""

    told: dict[int, list[bytes]]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StoredMetadata:
        """What several workers told, one after another."""
        numbers = self.told.keys() | other.told.keys()
        return StoredMetadata({number: self.told.get(number, []) + other.told.get(number, []) for number in numbers})


@dataclass
class ShapesMetadata(KVConnectorHandshakeMetadata):
    """Worker to scheduler, once: what a page of each group is; none where this model is not cached."""

    shapes: tuple[PageShape, ...]
