"""Tests what a page costs the worker, in executed instructions of Python, when each request completes one in a step."""

from __future__ import annotations

from secrets import token_hex
from typing import Final

import msgspec
import numpy as np

from counted_instructions import instructions_of
from pagetier.client import Client
from pagetier.client.async_copy.arena_pages import chunks_of
from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.engines.vllm.worker import WorkerHalf
from vllm_caches import heads_first
from vllm_worker_world import ends, store_command, worker_of

ARENA_FRAME: Final = "4KiB"
REQUESTS: Final = 16
OF_A_PAGE: Final = 92  # in the engine's own thread; it was 98
BLOCKS: Final = 8


def _commands(worker: WorkerHalf, count: int, prompt: int) -> tuple[StoreCommand, ...]:
    """Returns a page of each of `count` requests."""
    return tuple(
        msgspec.structs.replace(
            store_command(worker, 0, (1 + at % BLOCKS,), prompt=prompt + at), request=f"{prompt} {at}"
        )
        for at in range(count)
    )


def _instructions(worker: WorkerHalf, count: int, prompt: int) -> int:
    """Returns the instructions that a step with so many pages executes before it returns to the engine."""
    commands = _commands(worker, count, prompt)
    executed = instructions_of(lambda: worker.store(commands))
    ends(worker)
    return executed


def test_a_page_of_one_request_of_many_costs_few_instructions(client: Client) -> None:
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    _instructions(worker, REQUESTS, 0)  # fills caches
    one, many = _instructions(worker, 1, 100), _instructions(worker, 1 + REQUESTS, 200)
    assert 0 < (many - one) / REQUESTS < OF_A_PAGE


def test_pages_that_fit_into_a_chunk_are_not_looked_at_one_by_one() -> None:
    sizes = np.full(64, 10, np.int64)
    pages = np.arange(64)
    one = instructions_of(lambda: chunks_of(pages[:1], sizes, 640))
    assert instructions_of(lambda: chunks_of(pages[:64], sizes, 640)) == one
    assert [chunk.tolist() for chunk in chunks_of(pages, sizes, 640)] == [pages.tolist()]
    assert [len(chunk) for chunk in chunks_of(pages, sizes, 639)] == [63, 1]
    assert chunks_of(pages[:0], sizes, 640) == []
    assert [len(chunk) for chunk in chunks_of(pages[:2], sizes, 5)] == [1, 1]
