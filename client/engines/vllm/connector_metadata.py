"""Wraps commands, results and page shapes in the classes that vLLM sends between its processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from pagetier.client.engines.vllm.messages import NO_COMMANDS, StepCommands
from pagetier.client.engines.vllm.namespace import PageShape
from pagetier.client.engines.weights import ModelIdentity

log = logging.getLogger("vllm.pagetier")


@dataclass
class StepMetadata(KVConnectorMetadata):
    """A message of the scheduler to the workers in each step.

    Attributes:
        commands: The commands of the step.
        idle: Whether nothing is computed in the step.
        identity: The identity of the model, which only the scheduler determines. Each message with commands has it, so
            that all workers store the pages of a step in the namespaces that the scheduler has chosen.
        page_blocks: The number of vLLM's blocks in a page, which the scheduler chooses for all workers, too.
    """

    commands: StepCommands = NO_COMMANDS
    idle: bool = False
    identity: ModelIdentity = field(default_factory=ModelIdentity)
    page_blocks: int = 1

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the message of most steps as its name: it costs a process less than its fields."""
        return "NOTHING_TO_DO" if self is NOTHING_TO_DO else super().__reduce_ex__(protocol)


NOTHING_TO_DO: Final = StepMetadata()


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """A message of the workers to the scheduler at the end of a step, if they have something to report.

    Attributes:
        shapes: In the first message the page shapes of each worker: beside another connector the scheduler gets none of
            their handshake.
        copied: The seconds that the loads of requests took which have ended.
        idle: Whether the step has computed nothing.
    """

    shapes: list[ShapesMetadata] = field(default_factory=list)
    copied: Mapping[str, float] = field(default_factory=dict)
    idle: bool = False

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Returns the reports of both. Ranks copy at the same time, so the slowest one counts."""
        slowest = dict(self.copied)
        for name, seconds in other.copied.items():
            slowest[name] = max(seconds, slowest.get(name, 0.0))
        return WorkerReport(self.shapes + other.shapes, slowest, self.idle)


NO_REPORT: Final = WorkerReport()


@dataclass
class ShapesMetadata(KVConnectorHandshakeMetadata):
    """A message of a worker to the scheduler at start.

    Attributes:
        shapes: The page shape of each group; empty if this model is not cached.
        division: The division of this rank; see rank_share.py.
    """

    shapes: tuple[PageShape, ...]
    division: int = 0


def agreed_shapes(reports: Iterable[object], ranks: int) -> tuple[PageShape, ...]:
    """Returns the page shapes of all groups, division by division; none after a log line if nothing can be cached.

    Args:
        reports: What the workers have sent. Those that cannot cache the model have sent something else.
        ranks: The number of ranks of the engine.
    """
    reported = [one for one in reports if isinstance(one, ShapesMetadata) and one.shapes]
    by_division = {one.division: one.shapes for one in reported}
    if 0 < len(reported) < ranks:
        log.warning(
            "pagetier caches nothing: %d of %d ranks cannot cache this model, their log lines have the reason",
            ranks - len(reported),
            ranks,
        )
        return ()
    if any(one.shapes != by_division[one.division] for one in reported):
        log.warning("pagetier caches nothing: the page layouts of the ranks differ")
        return ()
    return tuple(shape for _, shapes in sorted(by_division.items()) for shape in shapes)
