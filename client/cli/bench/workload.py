"""Makes the prompts of a benchmark: chats that return, or the requests of a trace. They are IDs of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from pagetier.client.cli.replay.trace import Trace

_FIRST_TOKEN: Final = 300
_END_TOKEN: Final = 1000
"""The range of the tokens: each model has these IDs, and they are ordinary tokens rather than special ones."""
_NO_BLOCK: Final = (0, 0, 1)  # the words of a number that no block of a trace has
_LEAST_CHATS: Final = 8
_CACHE_EXCESS: Final = 1.25
"""The tokens between a chat and its return over those that the engine's own cache holds."""


class BenchPrompt(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        tokens: The IDs of its tokens.
        returning: Whether an earlier request had its beginning, other than the common system prompt.
    """

    tokens: list[int]
    returning: bool


class Chats(msgspec.Struct, frozen=True):
    """Chats that begin with the same system prompt, one after the other; then each of them returns.

    Attributes:
        count: The number of chats.
        tokens: Tokens of a chat when it returns: a quarter is the system prompt, half the first message, and the rest
            stands for the answer and the second message.
        seed: The seed of the tokens.
    """

    count: int
    tokens: int
    seed: int = 0

    def prompts(self) -> list[BenchPrompt]:
        """Returns the first turn of all chats and then the second one."""
        system, first = self.tokens // 4, self.tokens * 3 // 4
        beginning = _tokens((self.seed, 0), system)
        chats = [beginning + _tokens((self.seed, number), self.tokens - system) for number in range(1, self.count + 1)]
        return [BenchPrompt(chat[:first], returning=False) for chat in chats] + [
            BenchPrompt(chat, returning=True) for chat in chats
        ]

    def describe(self) -> str:
        """Returns the prompts in words."""
        first = self.tokens * 3 // 4
        shared = f"of which the first {self.tokens // 4:,} are common to all"
        return f"{self.count} chats of {first:,} tokens, {shared}; each returns once, with {self.tokens:,} tokens"


def chats_needed(cache_tokens: int, chat_tokens: int) -> int:
    """Returns how many chats of `chat_tokens` tokens exceed an engine's own cache between two turns of one."""
    return max(_LEAST_CHATS, math.ceil(_CACHE_EXCESS * cache_tokens / (chat_tokens // 2)))


def warm_up_prompt(tokens: int, seed: int) -> list[int]:
    """Returns a prompt that shares no block with the others."""
    return _tokens((seed, *_NO_BLOCK), tokens)


def prompts_of_trace(trace: Trace, longest: int, seed: int) -> list[BenchPrompt]:
    """Returns the requests of a trace that have a full block and at most `longest` tokens.

    A block has the same tokens wherever it occurs. Tokens after the last full block are left out.
    """
    blocks = [_tokens((seed, int(block_id)), trace.block_tokens) for block_id in trace.ids]
    seen: set[int] = set()
    made = []
    for request in range(len(trace)):
        numbers = trace.blocks(request).tolist()
        if 0 < len(numbers) * trace.block_tokens <= longest:
            made.append(BenchPrompt(_joined(blocks, numbers), returning=numbers[0] in seen))
            seen.update(numbers)
    return made


def _joined(blocks: Sequence[list[int]], numbers: Sequence[int]) -> list[int]:
    return [token for number in numbers for token in blocks[number]]


def _tokens(seed: tuple[int, ...], count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(_FIRST_TOKEN, _END_TOKEN, count).tolist()
    return tokens
