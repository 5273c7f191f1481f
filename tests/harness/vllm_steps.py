"""Requests, steps and free blocks of vLLM in the form in which the scheduler's half reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

PAGE = 4

IDLE: Any = SimpleNamespace(
    scheduled_new_reqs=[],
    scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
    scheduled_spec_decode_tokens={},
    num_scheduled_tokens={},
)


class FreeBlocks:
    """Free blocks that are reused from the highest number on; those in `unhashed` are not cached."""

    def __init__(self, free: int, unhashed: Sequence[int] = ()) -> None:
        self.unhashed, self._free, self.looked_up = unhashed, free, 0

    def hash_of(self, block: int) -> object:
        return None if block in self.unhashed else -block

    def free(self) -> Iterator[int]:
        for block in range(self._free, 0, -1):
            self.looked_up += 1
            yield block


def hashed(count: int, start: bytes = b"") -> list[bytes]:
    return [sha256(start + bytes([at])).digest() for at in range(count)]


def request(tokens: int, computed: int = 0, hashes: int | None = None) -> SimpleNamespace:
    count = tokens // PAGE if hashes is None else hashes
    return SimpleNamespace(
        request_id="one",
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=computed,
        block_hashes=hashed(count),
    )


def step(tokens: int, drafts: int = 0, offers: dict[str, Any] | None = None) -> Any:
    scheduled = SimpleNamespace(
        num_scheduled_tokens={"one": tokens}, scheduled_spec_decode_tokens={"one": [0] * drafts} if drafts else {}
    )
    if offers is not None:
        scheduled.kv_connector_block_state = SimpleNamespace(boundary_state_offloads=offers)
    return scheduled
