"""Requests and steps with the parts of vLLM's objects that the connector reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from vllm_block_pool import Block
from vllm_expected_blocks import Computed, Tokens

WAITING, LOADING, RUNNING, PREEMPTED, FINISHED = "waiting", "loading", "running", "preempted", "finished"


class Request:
    """A request. `future` has all tokens that it will ever have; the engine sees the first `num_tokens` of them."""

    def __init__(self, name: str, future: Tokens, prompt: int, hash_tokens: int, groups: int) -> None:
        self.request_id, self.future, self.num_prompt_tokens, self.num_tokens = name, future, prompt, prompt
        self.num_computed_tokens = 0
        self.lora_request = None
        self.state = WAITING
        self.placeholders = self.in_flight = self.preemptions = 0
        self.external = 0
        self.rows: list[list[Block]] = [[] for _ in range(groups)]
        self.block_hashes: list[bytes] = []
        self._hash_tokens = hash_tokens
        self.hash()

    def hash(self) -> None:
        size = self._hash_tokens
        for page in range(len(self.block_hashes), self.num_tokens // size):
            before = self.block_hashes[-1] if page else b""
            tokens = repr(self.future[page * size : (page + 1) * size])
            self.block_hashes.append(sha256(before + tokens.encode()).digest())

    @property
    def all_token_ids(self) -> Tokens:
        return self.future[: self.num_tokens]

    def is_finished(self) -> bool:
        return self.state == FINISHED

    def ids(self) -> tuple[list[int], ...]:
        return tuple([block.block_id for block in row] for row in self.rows)


@dataclass
class Step:
    """vLLM's SchedulerOutput. `done` has for each request its tokens, and whether they produce another token."""

    scheduled_new_reqs: list[Any] = field(default_factory=list)
    scheduled_cached_reqs: Any = None
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    computed: list[Computed] = field(default_factory=list)
    preemptions: dict[str, int] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    loaded: dict[str, bool] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())
