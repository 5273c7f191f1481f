"""The messages between the demo and its engines: a Task as the argument, then events, one line of JSON each."""

from __future__ import annotations

import msgspec


class Task(msgspec.Struct, frozen=True):
    """The work of an engine.

    Attributes:
        socket: The daemon's socket.
        engine: The engine's number, counted from 1.
        files: The GGUF files of the model.
    """

    socket: str
    engine: int
    files: list[str]


class Step(msgspec.Struct, frozen=True, tag=True):
    """An engine's step or its progress: `done` of `total` tokens, if it has any."""

    what: str
    done: int = 0
    total: int = 0


class Piece(msgspec.Struct, frozen=True, tag=True):
    """The text of a new token."""

    text: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """The result of an engine. A time to the first token begins with the prompt at hand and the model ready.

    Attributes:
        model: The name of the model.
        prompt_tokens: The tokens of the prompt.
        loaded_tokens: The tokens of the prompt that pagetier had.
        new_tokens: The tokens that were computed after the prompt, in both runs.
        equal: The new tokens whose logits are equal bit by bit in both runs.
        first_token_s: The time to the first token with pagetier.
        first_token_uncached_s: The time to the first token without it.
    """

    model: str
    prompt_tokens: int
    loaded_tokens: int
    new_tokens: int
    equal: int
    first_token_s: float
    first_token_uncached_s: float

    @property
    def exact(self) -> bool:
        """Whether all logits equal those of the run without pagetier."""
        return self.equal == self.new_tokens


Event = Step | Piece | Report
