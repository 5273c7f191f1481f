"""Wraps commands, results and page shapes in the classes that vLLM sends between its processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from pagetier.client.engines.vllm.messages import StepCommands
from pagetier.client.engines.vllm.namespace import ModelIdentity, PageShape


@dataclass
class StepMetadata(KVConnectorMetadata):
    """A message of the scheduler to the workers in each step.

    Attributes:
        commands: The commands of the step.
        idle: Whether nothing is computed in the step.
        identity: The identity of the model, which only the scheduler determines. Each message has it, so that all
            workers store the pages of a step in the namespaces that the scheduler has chosen.
    """

    commands: StepCommands = field(default_factory=StepCommands)
    idle: bool = False
    identity: ModelIdentity = field(default_factory=ModelIdentity)


@dataclass
class StoredMetadata(KVConnectorWorkerMetadata):
    """A message of the workers to the scheduler: which pages of numbered commands are stored.

    Attributes:
        results: By number of the command, the result of each worker; see WorkerHalf.store_results().
        shapes: The page shapes of each worker, in its first message. Beside another connector the scheduler does not
            get those of the handshake.
    """

    results: dict[int, list[bytes]]
    shapes: list[ShapesMetadata] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StoredMetadata:
        """Returns the results of both."""
        numbers = self.results.keys() | other.results.keys()
        return StoredMetadata(
            {number: self.results.get(number, []) + other.results.get(number, []) for number in numbers},
            self.shapes + other.shapes,
        )


@dataclass
class ShapesMetadata(KVConnectorHandshakeMetadata):
    """A message of a worker to the scheduler at start.

    Attributes:
        shapes: The page shape of each group; empty if this model is not cached.
        division: The division of this rank; see rank_share.py.
    """

    shapes: tuple[PageShape, ...]
    division: int = 0
