"""The messages between the fleet's demo and its engines: a Task, then events, one line of JSON each."""

from __future__ import annotations

import msgspec

from messages import Step


class Task(msgspec.Struct, frozen=True):
    """The work of an engine: the daemon's socket, and the engine's number, counted from 1."""

    socket: str
    engine: int


class FleetLoad(msgspec.Struct, frozen=True):
    """What an engine read from the fleet, and a digest of all pages of its prompt in memory after its run."""

    located_pages: int
    read_pages: int
    locate_s: float
    read_s: float
    digest: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """The result of an engine. A time to the first token begins with the prompt at hand and the model ready."""

    parameters: int
    threads: int
    prompt_tokens: int
    memory_tokens: int
    disk_tokens: int
    positions_equal: int
    pages_stored: int
    page_bytes: int
    first_token_s: float
    first_token_uncached_s: float
    fleet: FleetLoad

    @property
    def computed_tokens(self) -> int:
        """The tokens that the model had to compute."""
        return self.prompt_tokens - self.memory_tokens - self.disk_tokens

    @property
    def exact(self) -> bool:
        """Whether the logits at all computed positions equal those of the uncached run."""
        return self.positions_equal == self.computed_tokens


Event = Step | Report
